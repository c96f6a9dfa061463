"""The end of processes: how it is described, and how a process ends with the one that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def how_it_ended(code: int | None) -> str:
    """code: as `subprocess` and `multiprocessing` give it, negative for a signal."""
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def die_with_parent(parent: int) -> None:
    """On Linux, the kernel will kill this process when the thread that started it ends. On other systems, the
    process has to notice that the other end of its link is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
