"""Runs a command that ends with the process that started it, even if that is killed: python tied.py PARENT
COMMAND…

On Linux the kernel sees to it. Elsewhere the command just runs. This file is run by its path, so that nothing
else is imported; the command takes this process's place.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # outlives exec


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # it was gone before
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
