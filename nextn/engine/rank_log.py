"""The beginning of the log lines of ranks other than 0: "[tp1]", or "[dp0 tp1]" if a server has several
replicas or groups."""

from __future__ import annotations

import logging

_replica: int | None = None


def name_replica(number: int | None) -> None:
    """The ranks that this process starts from now on are those of this replica or group. None: there is only
    one."""
    global _replica
    _replica = number


def line_start(rank: int, group: int | None = None) -> str:
    """rank: in its replica or group. group: its number, if this process starts ranks of several groups."""
    number = _replica if group is None else group
    return f"[tp{rank}]" if number is None else f"[dp{number} tp{rank}]"


def configure(start: str) -> None:
    """Configures logging of a rank's process. Rank 0 logs what all ranks would log, so only warnings are
    logged. start: as `line_start` returned it in the process that started this rank."""
    logging.basicConfig(level=logging.WARNING, format=f"{start} %(name)s: %(message)s")
