"""What whoever moves pages between two engines does to one of them, between its steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from nextn.engine.executor import Executor
from nextn.request import Failure, Output, Request
from nextn.scheduler.scheduler import Scheduler
from nextn.scheduler.transfers import sent_slots


class PageTransfers:
    """Of requests with `Request.fetch` or `hold` (`nextn.scheduler.transfers`)."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor, self._scheduler, self._requests = executor, scheduler, scheduler.transfers
        self.changed = False  # has the scheduler more to do since this was last set to False?

    @property
    def fetching(self) -> Mapping[str, Request]:
        return self._requests.fetching

    @property
    def held(self) -> Mapping[str, Request]:
        return self._requests.held

    @property
    def blocked(self) -> bool:
        """Do requests wait for pages while none runs that would give some back?"""
        return bool(self._scheduler.waiting) and not self._scheduler.running

    def whole(self, request: Request) -> int:
        """Slots of its prompt that go from one engine to the other; see `sent_slots`."""
        info = self._executor.info
        return sent_slots(request.num_prompt, info.nextn_layers, info.page_size)

    def begun(self) -> list[Request]:
        """The fetches that began since the last call."""
        return self._requests.begun()

    def read(self, request: Request, first: int, count: int, into: Tensor) -> None:
        """Copies pages first .. first + count - 1 of a request into [layers, count * page_size, width]."""
        self._executor.read_pages(request.pages[first : first + count], into)

    def write(self, request: Request, first: int, data: Tensor) -> None:
        """Fills pages of a request that fetches, from number `first` on, with what `read` copied."""
        count = data.shape[1] // self._executor.info.page_size
        self._executor.write_pages(request.pages[first : first + count], data)

    def memory(self) -> Tensor | None:
        """The pool, for who copies pages itself; see `Executor.page_memory`."""
        return self._executor.page_memory()

    @property
    def page_size(self) -> int:
        return self._executor.info.page_size

    def fetched(self, rid: str, slots: int, cached: int = 0, error: Failure | None = None) -> list[Output]:
        """No more pages will come. slots: of the prompt that are true now. cached, error: see
        `Scheduler.fetched`."""
        self.changed = True
        self._requests.arrived(rid, slots)
        return self._scheduler.fetched(rid, cached, error)

    def release(self, rid: str) -> None:
        """Nobody needs the pages of a request that was held any more."""
        self.changed = True
        self._requests.release(rid)
