"""An executor whose runner is in another process: states, plans and results cross as pickled plain data.

    Engine(config, ProcessExecutor)

It is for those who work on nextn: a step takes a little longer for the crossing. It shows that the engine's
loop knows nothing of what runs its steps but the contract (`nextn.engine.executor`).
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import threading
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Generic, TypeAlias, TypeVar

import torch
from torch import Tensor

from nextn.config import EngineConfig
from nextn.distributed.wire import GONE
from nextn.engine.executor import ExecutorInfo
from nextn.engine.page_data import PageData
from nextn.engine.rank import make_runner
from nextn.engine.runner import Runner
from nextn.engine.state_messages import StateMessage, apply
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

Found = TypeVar("Found")
Message: TypeAlias = StateMessage | Plan | list[int]  # a list: pages to be read


class ExecutorError(RuntimeError):
    """The process ended: no step will run any more."""


class ProcessExecutor:
    """Raises ExecutorError once the process is gone, whatever ended it."""

    waited = 0.0
    awake, wakes = False, None

    def __init__(self, config: EngineConfig) -> None:
        """Raises what `make_runner` does."""
        spawn = multiprocessing.get_context("spawn")
        self._link, theirs = spawn.Pipe()
        self.process = spawn.Process(target=_serve, args=(config, theirs), name="nextn-executor", daemon=True)
        self.process.start()
        theirs.close()  # or it would never be at its end
        self.close = weakref.finalize(self, _end, self._link, self.process)
        self._unread: deque[_Ticket[Any]] = deque()
        made: ExecutorInfo | Exception = self._receive()
        if isinstance(made, Exception):
            raise made
        self.info = made

    def add(self, state: RequestState) -> None:
        self._send(state)

    def drop(self, rid: str) -> None:
        self._send(rid)

    def launch(self, plan: Plan) -> _Ticket[StepResult]:
        return self._ask(plan)

    def _ask(self, message: Plan | list[int]) -> _Ticket[Any]:
        self._send(message)
        ticket: _Ticket[Any] = _Ticket(self._result)
        self._unread.append(ticket)
        return ticket

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        found: PageData = self._ask(list(pages)).result()
        into.copy_(found.tensor())

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        self._send(PageData.of(pages, data))

    def page_memory(self) -> None:
        """It is in the other process."""

    def check(self) -> None:
        if self.process.exitcode is not None:
            raise self._gone()

    def refuse(self, reason: str) -> None:
        pass

    def expert_counts(self) -> None:
        """They are in the other process."""

    def shard_load(self) -> None:
        """It is in the other process."""

    def _result(self, ticket: _Ticket[Any]) -> None:
        """Reads results up to this ticket's."""
        while ticket.found is None:
            found = self._receive()
            self._unread.popleft().found = found

    def _send(self, message: Message) -> None:
        try:
            self._link.send(message)
        except GONE as e:
            raise self._gone() from e

    def _receive(self) -> Any:
        try:
            message = self._link.recv()
        except GONE as e:
            raise self._gone() from e
        if isinstance(message, str):
            raise ExecutorError(f"the executor's process failed:\n{message}")
        return message

    def _gone(self) -> ExecutorError:
        self.process.join(1.0)
        return ExecutorError(
            f"the executor's process {self.process.pid} has ended (exit code {self.process.exitcode}); "
            "start the engine again"
        )


class _Ticket(Generic[Found]):
    def __init__(self, read: Callable[[_Ticket[Any]], None]) -> None:
        self.found: Found | None = None
        self._read = read

    def result(self) -> Found:
        self._read(self)
        assert self.found is not None
        return self.found


def _end(link: Connection, process: BaseProcess) -> None:
    link.close()
    process.join(5.0)
    if process.exitcode is None:
        process.kill()


def _serve(config: EngineConfig, link: Connection) -> None:
    """The process's main function. It ends with its parent, whose end of the pipe is closed then."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    try:
        runner = make_runner(config)
    except (ValueError, OSError) as e:
        link.send(e)
        return
    link.send(runner.info)
    messages: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    # A thread reads, so that a parent that writes never waits for a step, nor for its result to be read.
    threading.Thread(target=_read, args=(link, messages), daemon=True).start()
    try:
        while (message := messages.get()) is not None:
            if apply(runner, message):
                continue
            if isinstance(message, list):
                link.send(read(runner, message))
            else:
                assert isinstance(message, Plan)
                link.send(runner.launch(message).result())
    except Exception:
        link.send(traceback.format_exc())


def read(runner: Runner, pages: list[int]) -> PageData:
    info = runner.info
    data = torch.empty(
        info.cache_layers, len(pages) * info.page_size, info.cache_width, dtype=runner.model.dtype
    )
    runner.read_pages(pages, data)
    return PageData.of(pages, data)


def _read(link: Connection, messages: queue.SimpleQueue[Message | None]) -> None:
    try:
        while True:
            messages.put(link.recv())
    except GONE:
        pass
    finally:
        messages.put(None)
