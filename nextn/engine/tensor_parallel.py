"""An executor of several ranks on this machine: processes that compute every step together.

    Engine(EngineConfig(tp_size=2))

Rank 0 is this process. States, plans and drops go to the others as pickled plain data; every rank runs the
same runner on its own part of the weights and finds the same tokens, so no result has to be sent. A rank that
ends, fails or stops answering ends all: the next step raises `PeerGone`, and whoever supervises this process
starts it again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection

from nextn.config import EngineConfig, usable_cores
from nextn.distributed.group import PeerGone
from nextn.distributed.numa import pin
from nextn.distributed.process import RankProcess
from nextn.distributed.pulse import Pulse
from nextn.distributed.shared import Memory, SharedRanks
from nextn.draft import MAX_DRAFTS, draft_window
from nextn.engine.executor import ExecutorInfo, Ran
from nextn.engine.rank import make_runner
from nextn.ops.cpu.library import library
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

log = logging.getLogger("nextn.engine")

GONE = (EOFError, OSError)  # of a pipe whose other end is closed
END_SECONDS = 2.0  # for a rank to end by itself; then it is killed


class TensorParallelExecutor:
    """Raises PeerGone once a rank is gone."""

    def __init__(self, config: EngineConfig) -> None:
        """Raises what `make_runner` does, in any rank."""
        size = config.tp_size
        self._check = config.check_integrity
        memory, each = Memory(), threads_of(config)
        config = dataclasses.replace(config, threads=each)
        self.processes: list[RankProcess] = []
        ends: list[Callable[[], None]] = [memory.close]
        self.close = weakref.finalize(self, _end, self.processes, ends)
        for rank in range(1, size):
            self.processes.append(RankProcess("nextn.engine.tensor_rank", memory))
            self.processes[-1].link.send((config, rank))
        self._ranks = ranks_of(config, 0, memory)
        if config.numa == "auto":
            pin(0, size)
        self._lost = threading.Lock()
        own = weakref.ref(self)
        args = (own, self.processes)
        threading.Thread(target=_watch, args=args, name="nextn-ranks", daemon=True).start()
        try:
            self._runner = make_runner(config, self._ranks)
            for rank, process in enumerate(self.processes, start=1):
                made = self._receive(rank, process)
                if isinstance(made, Exception):
                    raise made
        except BaseException:
            self.close()
            raise
        self.info: ExecutorInfo = self._runner.info
        ends.insert(0, Pulse(self._ranks, partial(_silent, own)).stop)

    def add(self, state: RequestState) -> None:
        self._send(state)
        self._runner.add(state)

    def drop(self, rid: str) -> None:
        self._send(rid)
        self._runner.drop(rid)

    def launch(self, plan: Plan) -> Ran:
        self._send(plan)
        ticket = self._runner.launch(plan)
        if self._check:
            self._compare(ticket.found)
        return ticket

    @property
    def waited(self) -> float:
        return self._ranks.waited

    def check(self) -> None:
        """Raises PeerGone where no step can run any more."""
        if self._ranks.reason:
            raise self._ranks.gone()

    def _compare(self, result: StepResult) -> None:
        own = digest(result)
        for rank, process in enumerate(self.processes, start=1):
            found = self._receive(rank, process)
            assert found == own, f"rank {rank} found another result than rank 0"

    def _send(self, message: RequestState | str | Plan) -> None:
        self.check()
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            for process in self.processes:
                process.link.send_bytes(data)
        except GONE as e:
            raise self._gone("a rank has ended") from e

    def _receive(self, rank: int, process: RankProcess) -> object:
        try:
            found: object = process.link.recv()
        except GONE as e:
            raise self._gone(f"rank {rank} has ended") from e
        return found

    def _gone(self, reason: str) -> PeerGone:
        with self._lost:
            if not self._ranks.reason:
                log.critical("%s: this engine can run no more steps", reason)
        self._ranks.give_up(library(), reason)
        for process in self.processes:
            process.kill()
        return self._ranks.gone()


# In threads, which must not keep an executor that nobody else needs.


def _watch(own: weakref.ref[TensorParallelExecutor], processes: Sequence[RankProcess]) -> None:
    """Notices at once when a process ends."""
    ended = connection.wait([process.sentinel for process in processes])
    executor = own()
    if executor is None or not executor.close.alive:
        return
    for rank, process in enumerate(processes, start=1):
        if process.sentinel in ended:
            executor._gone(f"rank {rank} has ended ({process.how_it_ended()})")


def _silent(own: weakref.ref[TensorParallelExecutor], rank: int) -> None:
    executor = own()
    if executor is not None:
        executor._gone(f"rank {rank} does not answer")


def threads_of(config: EngineConfig) -> int:
    """Of each rank: --threads are those of one."""
    return config.threads or max(1, usable_cores() // config.tp_size)


def ranks_of(config: EngineConfig, rank: int, memory: Memory) -> SharedRanks:
    each = 1 + MAX_DRAFTS + draft_window(config.page_size)  # rows of a request in a step, beside prompts
    most_rows = config.chunked_prefill_size + config.max_running_requests * each
    return SharedRanks(rank, config.tp_size, memory, config.tp_size * threads_of(config), most_rows)


def digest(result: StepResult) -> bytes:
    """Of what the step found: every rank must find the same."""
    return hashlib.blake2b(repr(result.spans).encode(), digest_size=8).digest()


def _end(processes: Sequence[RankProcess], ends: Sequence[Callable[[], None]]) -> None:
    for process in processes:
        process.close()
    for end in ends:
        end()
