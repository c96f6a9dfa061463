"""Chooses the cores that a rank computes on: those of one NUMA node, near the memory with its weights."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

NODES = Path("/sys/devices/system/node")


def nodes(folder: Path = NODES) -> list[frozenset[int]]:
    """Returns the cores of each NUMA node that this process may use, without nodes that have none. At most
    one node if the system does not tell."""
    usable = frozenset(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else frozenset()
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        with contextlib.suppress(OSError, ValueError):
            if cores := parsed((node / "cpulist").read_text()) & usable:
                found.append(cores)
    return found


def parsed(cpulist: str) -> frozenset[int]:
    """
    >>> sorted(parsed("0-2,8"))
    [0, 1, 2, 8]
    """
    found: set[int] = set()
    for part in re.findall(r"(\d+)(?:-(\d+))?", cpulist):
        found.update(range(int(part[0]), int(part[1] or part[0]) + 1))
    return frozenset(found)


def cores_of(rank: int, size: int, found: list[frozenset[int]]) -> frozenset[int] | None:
    """Returns a rank's cores. Ranks are distributed evenly over the nodes in `found`, neighbours on the same
    node. If there are fewer ranks than nodes, each gets several nodes. None if there is one node or one
    rank."""
    if len(found) < 2 or size < 2:
        return None
    first, after = (each * len(found) // size for each in (rank, rank + 1))
    return frozenset[int]().union(*found[first : max(after, first + 1)])


def pin(rank: int, size: int) -> None:
    """Restricts this thread, and threads that it starts, to the cores of the rank's node."""
    cores = cores_of(rank, size, nodes())
    if cores is not None:
        os.sched_setaffinity(0, cores)
