"""Processes of this machine, from /proc. A zombie does not count."""

from __future__ import annotations

import contextlib
from pathlib import Path


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> set[int]:
    """The children of all threads of a process."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += task.read_text().split()
    return {child for child in map(int, found) if runs(child)}


def family(pid: int) -> set[int]:
    """A process and all its descendants."""
    return {pid}.union(*map(family, children(pid)))


def session(leader: int) -> list[int]:
    """The process ids of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(of) == leader and state != "Z":
            found.append(int(stat.parent.name))
    return found


def command(pid: int) -> bytes:
    """The words of its command line, each followed by a NUL. Empty if the process does not run."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
