"""What a group's engine and its ranks on other machines say to each other, beside plans, states and pages:
plain data (`nextn.distributed.wire`)."""

from __future__ import annotations

from typing import NamedTuple

from nextn.expert_load import CountTable, ShardRows
from nextn.scheduler.plan import StepResult


class Stepped(NamedTuple):
    """From the group's first rank, after each plan. busy: had any group rows? waited: seconds of this rank in
    all. sent: bytes of all ranks of the group in all. shards: see `nextn.engine.executor.ShardLoad`."""

    result: StepResult
    busy: bool
    waited: float
    sent: int
    shards: ShardRows | None


class Count(NamedTuple):
    """To the group's first rank, which answers with `Counted`."""


class Counted(NamedTuple):
    """See `nextn.engine.executor.ExpertCounts`."""

    target: CountTable
    nextn: CountTable
