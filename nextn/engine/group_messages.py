"""Messages between a group's engine and its ranks on other machines, besides plans, states and pages. Plain
data (`nextn.distributed.wire`)."""

from __future__ import annotations

from typing import NamedTuple

from nextn.expert_load import CountTable, ShardRows
from nextn.scheduler.plan import StepResult


class Stepped(NamedTuple):
    """From the group's first rank, after each plan. busy: whether any group had rows. sent: total bytes of
    all ranks of the group. shards: see `nextn.engine.executor.ShardLoad`."""

    result: StepResult
    busy: bool
    sent: int
    shards: ShardRows | None


class Count(NamedTuple):
    """To the group's first rank, which answers with `Counted`."""


class Counted(NamedTuple):
    """See `nextn.engine.executor.ExpertCounts`."""

    target: CountTable
    nextn: CountTable
