"""How processes end: with the one that started them, and what is said of it."""

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
    """On Linux the kernel kills this process when the thread that started it ends. Elsewhere it has to notice
    by itself that nobody is at the other end of its link."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit(0)
