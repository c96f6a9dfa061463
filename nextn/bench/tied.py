"""Runs a command that ends when the process that started it ends, even if that process is killed: python
tied.py PARENT COMMAND…

On Linux the kernel ends the command. On other systems the command just runs. This file is run by its path, so
that nothing else is imported. The command replaces this process (exec).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # stays in force after exec


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:  # the parent ended before the call
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
