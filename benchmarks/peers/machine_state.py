"""Checks whether the machine is idle. Other work on its cores can make any engine several times slower."""

from __future__ import annotations

import re
import time
from pathlib import Path

QUIET = 0.08  # maximum share of all cores' time that other work takes on an idle machine
LOOK_SECONDS = 1.0
LOOKS = 3  # number of idle readings in a row


def busy_share(before: str, after: str) -> float:
    """Share of time in which cores were busy, from two readings of /proc/stat."""

    def read(text: str) -> tuple[int, int]:
        times = [int(x) for x in text.splitlines()[0].split()[1:9]]
        return sum(times), times[3] + times[4]  # (all, idle or waiting for a disk)

    (all_before, idle_before), (all_after, idle_after) = read(before), read(after)
    spent = all_after - all_before
    return 1.0 - (idle_after - idle_before) / spent if spent else 0.0


def wait_until_idle(most_seconds: float, stat: Path = Path("/proc/stat")) -> bool:
    """Waits until LOOKS readings in a row are idle, at most `most_seconds`. Returns whether they were. It
    returns False at once if `most_seconds` is 0 or the system has no /proc/stat."""
    end, quiet = time.monotonic() + most_seconds, 0
    while most_seconds and stat.exists() and time.monotonic() < end:
        before = stat.read_text()
        time.sleep(LOOK_SECONDS)
        quiet = quiet + 1 if busy_share(before, stat.read_text()) <= QUIET else 0
        if quiet == LOOKS:
            return True
    return False


def free_share(meminfo: Path = Path("/proc/meminfo")) -> float:
    """Share of the memory that is available; 0.0 if the system does not report it."""
    if not meminfo.exists():
        return 0.0
    found = {name: int(kb) for name, kb in re.findall(r"(\w+):\s+(\d+) kB", meminfo.read_text())}
    return found["MemAvailable"] / found["MemTotal"]
