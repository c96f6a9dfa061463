"""An executor that runs steps in a thread, so that `launch` returns at once. While a step runs, the engine
and the receiver of its outputs do their work. Native kernels run without Python's lock."""

from __future__ import annotations

import queue
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import torch
from torch import Tensor

from nextn.engine.around import Around
from nextn.engine.executor import Executor, Ticket
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

Call: TypeAlias = tuple[Callable[..., Any], tuple[Any, ...], "_Answer | None"]

LAST_STEP = 10.0  # seconds to wait for the last step at the end


class _Answer(queue.SimpleQueue[Any]):
    """The result of one call, or the exception that it raised."""

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


@runtime_checkable
class LaunchesAtOnce(Protocol):
    """An executor that can launch some steps without waiting."""

    def launch_at_once(self, plan: Plan) -> Ticket | None:
        """Like `launch`, without waiting for any step. If this is not possible, returns None and does
        nothing."""


class ThreadExecutor(Around):
    """Raises the errors of the wrapped executor. If `add` or `drop` had to wait for a step, their errors are
    raised when the next result is read.

    While the thread is idle, the caller itself makes calls that do not wait. Using the thread for these would
    gain nothing, because only one thread runs Python at a time."""

    def __init__(self, own: Executor) -> None:
        super().__init__(own)
        self._at_once = own.launch_at_once if isinstance(own, LaunchesAtOnce) else None
        self._home = threading.get_ident()
        # Number of calls given to the thread, and of those that have ended. After a failure, none ends.
        self._asked, self._done = 0, [0]
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        # CUDA's current device is each thread's own.
        gpu = torch.cuda.current_device() if own.info.device == "cuda" else None
        serves = self._calls, self._done, gpu
        thread = threading.Thread(target=_serve, args=serves, name="nextn-steps", daemon=True)
        thread.start()
        # Before what the steps use is freed, also when Python ends.
        self.close = weakref.finalize(self, _end, self._calls, thread)

    @property
    def _idle(self) -> bool:
        """Whether the caller may make the call itself."""
        idle = self._at_once is not None and self._asked == self._done[0]
        return idle and threading.get_ident() == self._home  # whose device is the engine's

    def add(self, state: RequestState) -> None:
        if self._idle:
            self._own.add(state)
        else:
            self._put(self._own.add, state)

    def drop(self, rid: str) -> None:
        if self._idle:
            self._own.drop(rid)
        else:
            self._put(self._own.drop, rid)

    def launch(self, plan: Plan) -> Ticket:
        ticket = self._at_once(plan) if self._at_once is not None and self._idle else None
        return _Ticket(self._ask(self._own.launch, plan)) if ticket is None else ticket

    def _put(self, call: Callable[..., Any], *arguments: Any, answer: _Answer | None = None) -> None:
        self._asked += 1
        self._calls.put((call, arguments, answer))

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> _Answer:
        answer = _Answer()
        self._put(call, *arguments, answer=answer)
        return answer

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        self._ask(self._own.read_pages, pages, into).result()

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        self._ask(self._own.write_pages, pages, data).result()

    def page_memory(self) -> Tensor | None:
        found: Tensor | None = self._ask(self._own.page_memory).result()
        return found


def _end(calls: queue.SimpleQueue[Call | None], thread: threading.Thread) -> None:
    """Ends the thread after the current step."""
    calls.put(None)
    if thread is not threading.current_thread():
        thread.join(LAST_STEP)


def _serve(calls: queue.SimpleQueue[Call | None], done: list[int], gpu: int | None) -> None:
    if gpu is not None:
        torch.cuda.set_device(gpu)
    failed: BaseException | None = None  # the error of a call without a waiting caller
    while (each := calls.get()) is not None:
        call, arguments, answer = each
        try:
            if failed is not None and answer is not None:
                raise failed
            found = call(*arguments)
        except BaseException as e:
            found = failed = e
        done[0] += failed is None
        if answer is not None:
            answer.put(found)
        del each, call, arguments, answer, found  # keep no references until the next call
