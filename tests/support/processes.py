"""Processes of this machine, as /proc shows them. A zombie does not count."""

from __future__ import annotations

import contextlib
from pathlib import Path


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def children(pid: int) -> set[int]:
    """Of all its threads."""
    found: list[str] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += task.read_text().split()
    return {child for child in map(int, found) if runs(child)}


def family(pid: int) -> set[int]:
    """A process and all that descend from it."""
    return {pid}.union(*map(family, children(pid)))


def session(leader: int) -> list[int]:
    """The processes of a session."""
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
    """Its words, each with a NUL behind it; none where it does not run."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""
