"""python -m nextn.launch_server: the same as `nextn serve`, for scripts written for SGLang."""

from __future__ import annotations

import sys

from nextn.cli import main

if __name__ == "__main__":
    sys.exit(main(["serve", *sys.argv[1:]]))
