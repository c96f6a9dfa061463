"""The interface of one engine for code that transfers pages between two engines, between its steps."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from nextn.engine.executor import Executor
from nextn.request import Failure, Output, Request
from nextn.scheduler.scheduler import Scheduler
from nextn.scheduler.transfers import sent_slots


class PageTransfers:
    """For requests with `Request.fetch` or `hold` (`nextn.scheduler.transfers`)."""

    def __init__(self, executor: Executor, scheduler: Scheduler) -> None:
        self._executor, self._scheduler, self._requests = executor, scheduler, scheduler.transfers
        self.changed = False  # whether the scheduler has new work since this was set to False

    @property
    def fetching(self) -> Mapping[str, Request]:
        return self._requests.fetching

    @property
    def held(self) -> Mapping[str, Request]:
        return self._requests.held

    @property
    def blocked(self) -> bool:
        """Whether requests wait for pages and no request runs that would free some."""
        return bool(self._scheduler.waiting) and not self._scheduler.running

    def whole(self, request: Request) -> int:
        """Number of slots of its prompt that are transferred; see `sent_slots`."""
        info = self._executor.info
        return sent_slots(request.num_prompt, info.nextn_layers, info.page_size)

    def begun(self) -> list[Request]:
        """The fetches that began since the last call."""
        return self._requests.begun()

    def read(self, request: Request, first: int, count: int, into: Tensor) -> None:
        """Copies pages first .. first + count - 1 of a request into [layers, count * page_size, width]."""
        self._executor.read_pages(request.pages[first : first + count], into)

    def write(self, request: Request, first: int, data: Tensor) -> None:
        """Fills pages of a fetching request, from index `first` on, with data from `read`."""
        count = data.shape[1] // self._executor.info.page_size
        self._executor.write_pages(request.pages[first : first + count], data)

    def memory(self) -> Tensor | None:
        """The pool, for code that copies pages itself; see `Executor.page_memory`."""
        return self._executor.page_memory()

    @property
    def page_size(self) -> int:
        return self._executor.info.page_size

    def fetched(self, rid: str, slots: int, cached: int = 0, error: Failure | None = None) -> list[Output]:
        """No more pages will arrive. slots: number of the prompt's slots that have arrived. cached, error:
        see `Scheduler.fetched`."""
        self.changed = True
        self._requests.arrived(rid, slots)
        return self._scheduler.fetched(rid, cached, error)

    def release(self, rid: str) -> None:
        """The pages of a held request are no longer needed."""
        self.changed = True
        self._requests.release(rid)
