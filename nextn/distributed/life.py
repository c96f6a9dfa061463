"""The end of processes: how it is described, how a process ends with the one that started it, and how a
stopped process is noticed."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOPPED_SECONDS = 2.0  # after which a stopped process counts as gone


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


class StopWatch:
    """Notices that a process of this machine is stopped (SIGSTOP). The system says so itself, so it does not
    matter how long the process could not report. Systems other than Linux are not asked."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._since: float | None = None  # when it was first found stopped
        self._asked = 0.0

    @property
    def stopped(self) -> bool:
        """Whether it was stopped each time this was asked in the last STOPPED_SECONDS. Ask at least once a
        second: after a longer break the time begins anew, because this process may have been stopped too."""
        now = time.monotonic()
        if not is_stopped(self._pid):
            self._since = None
        elif self._since is None or now - self._asked > STOPPED_SECONDS:
            self._since = now
        self._asked = now
        return self._since is not None and now - self._since >= STOPPED_SECONDS


def is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # it has ended, or the system is not Linux
        return False
    return stat.rpartition(")")[2].split()[0] == "T"
