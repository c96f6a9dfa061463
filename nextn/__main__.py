"""python -m nextn: the same as the `nextn` command."""

from __future__ import annotations

import sys

from nextn.cli import main

if __name__ == "__main__":
    sys.exit(main())
