"""An executor that runs its steps in a thread, so that `launch` returns at once: the engine's own work, and
that of whoever takes its outputs, is done while a step runs. Native kernels run without Python's lock."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from nextn.engine.around import Around
from nextn.engine.executor import Executor
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], "_Answer | None"]

LAST_STEP = 10.0  # seconds in which it should have ended


class _Answer(queue.SimpleQueue[Any]):
    """Of one call: what it returned, or what it raised."""

    def result(self) -> Any:
        found = self.get()
        if isinstance(found, BaseException):
            raise found
        return found


class _Ticket:
    def __init__(self, answer: _Answer) -> None:
        self._answer = answer

    def result(self) -> StepResult:
        ticket = self._answer.result()
        found: StepResult = ticket.result()
        return found


class ThreadExecutor(Around):
    """Raises what the other one does: of `add` and `drop` when the next result is read."""

    def __init__(self, own: Executor) -> None:
        super().__init__(own)
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        # CUDA's current device is each thread's own.
        gpu = torch.cuda.current_device() if own.info.device == "cuda" else None
        thread = threading.Thread(target=_serve, args=(self._calls, gpu), name="nextn-steps", daemon=True)
        thread.start()
        # Before what the steps use is freed, also when Python ends.
        self.close = weakref.finalize(self, _end, self._calls, thread)

    def add(self, state: RequestState) -> None:
        self._calls.put((self._own.add, (state,), None))

    def drop(self, rid: str) -> None:
        self._calls.put((self._own.drop, (rid,), None))

    def launch(self, plan: Plan) -> _Ticket:
        return _Ticket(self._ask(self._own.launch, plan))

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> _Answer:
        answer = _Answer()
        self._calls.put((call, arguments, answer))
        return answer

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        self._ask(self._own.read_pages, pages, into).result()

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        self._ask(self._own.write_pages, pages, data).result()

    def page_memory(self) -> Tensor | None:
        found: Tensor | None = self._ask(self._own.page_memory).result()
        return found


def _end(calls: queue.SimpleQueue[Call | None], thread: threading.Thread) -> None:
    """After the step that is under way."""
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join(LAST_STEP)


def _serve(calls: queue.SimpleQueue[Call | None], gpu: int | None) -> None:
    if gpu is not None:
        torch.cuda.set_device(gpu)
    failed: BaseException | None = None  # in a call that nobody waits for
    while (each := calls.get()) is not None:
        call, arguments, answer = each
        try:
            if failed is not None and answer is not None:
                raise failed
            found = call(*arguments)
        except BaseException as e:
            found = failed = e
        if answer is not None:
            answer.put(found)
        del each, call, arguments, answer, found  # nothing is kept until the next call
