"""The base of an executor that wraps another one and passes calls on to it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nextn.engine.executor import Executor, ExecutorInfo, ExpertCounts, ShardLoad, Ticket, Wakes
from nextn.scheduler.plan import Plan
from nextn.speculative.state import RequestState


class Around:
    """See `Executor`."""

    def __init__(self, own: Executor) -> None:
        self._own = own
        self.info: ExecutorInfo = own.info

    def add(self, state: RequestState) -> None:
        self._own.add(state)

    def drop(self, rid: str) -> None:
        self._own.drop(rid)

    def launch(self, plan: Plan) -> Ticket:
        return self._own.launch(plan)

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        self._own.read_pages(pages, into)

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        self._own.write_pages(pages, data)

    def page_memory(self) -> Tensor | None:
        return self._own.page_memory()

    def check(self) -> None:
        self._own.check()

    def refuse(self, reason: str) -> None:
        self._own.refuse(reason)

    def expert_counts(self) -> ExpertCounts | None:
        return self._own.expert_counts()

    def shard_load(self) -> ShardLoad | None:
        return self._own.shard_load()

    @property
    def awake(self) -> bool:
        return self._own.awake

    @property
    def wakes(self) -> Wakes | None:
        return self._own.wakes
