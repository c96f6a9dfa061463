"""An executor of several ranks: processes that compute every step together.

    Engine(EngineConfig(tp_size=2))

Rank 0 is this process. States, plans and drops are sent to the others as pickled plain data. Every rank runs
the same runner with its own part of the weights and finds the same tokens, so no result is sent. If a rank
ends, fails or stops answering, all ranks end: the next step raises `PeerGone`, and the supervisor of this
process starts it again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import logging
import os
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from multiprocessing import connection

from torch import Tensor

from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
from nextn.distributed.process import RankProcess
from nextn.distributed.pulse import LOADING, SILENT, Pulse
from nextn.distributed.step_world import StepWorld
from nextn.distributed.wire import GONE, Ended, Loaded, dumps, receive
from nextn.engine.ep_rank import EPRank
from nextn.engine.executor import ExecutorInfo, ExpertCounts, Ran, ShardLoad
from nextn.engine.gang import Gang, threads_of
from nextn.engine.page_data import PageData
from nextn.engine.rank import make_runner
from nextn.scheduler.plan import Plan, StepResult
from nextn.speculative.state import RequestState

log = logging.getLogger("nextn.engine")

STUCK_SECONDS = 4.0  # for a step to end after a rank has ended; a stopped rank is killed after 2


class TensorParallelExecutor:
    """Raises PeerGone after a rank has ended."""

    awake, wakes = False, None  # see `Executor`

    def __init__(self, config: EngineConfig, ep_rank: EPRank | None = None) -> None:
        """ep_rank: rank 0's, if experts are shared. Raises the errors of `make_runner` in any rank, and those
        of `Gang`."""
        if config.node_rank:
            raise ValueError(
                f"--node-rank {config.node_rank}: only nextn serve runs the ranks of other nodes"
            )
        self._check = config.check_integrity
        self.world: StepWorld | None = None
        self._gang = Gang(dataclasses.replace(config, threads=threads_of(config)), ep_rank)
        config = self._gang.config
        self._ranks, self.processes = self._gang.own, self._gang.processes
        self._last: list[Ended | None] = [Ended()]
        self._lost = threading.Lock()
        self._busy: int | None = threading.get_ident()  # the thread that starts the engine, or runs a step
        own = weakref.ref(self)
        watches = {rank: process.watch for rank, process in self.processes.items()}
        pulse = Pulse(self._ranks, partial(_lost, own), LOADING, watches)
        self.close = weakref.finalize(self, _end, self._gang, pulse, self._last)
        if self.processes:
            args = (own, self.processes)
            threading.Thread(target=_watch, args=args, name="nextn-ranks", daemon=True).start()
        try:
            self._runner = make_runner(config, self._ranks, ep_rank)
            for rank in range(1, config.tp_size):
                made = self._receive(rank)
                if isinstance(made, Exception):
                    raise made
                assert isinstance(made, ExecutorInfo)
                assert made.pages == self._runner.info.pages, f"rank {rank} has another KV pool than rank 0"
        except BaseException as e:
            refusal = self._refusal() if isinstance(e, PeerGone) else None
            self._last[0] = _refused(refusal or e)
            self.close()
            if refusal is not None:
                raise refusal from e
            raise
        finally:
            self._busy = None
        self.info: ExecutorInfo = self._runner.info
        self.world = self._runner.world
        pulse.expect(SILENT)
        self._send(Loaded())

    def add(self, state: RequestState) -> None:
        self._send(state)
        self._runner.add(state)

    def drop(self, rid: str) -> None:
        self._send(rid)
        self._runner.drop(rid)

    def launch(self, plan: Plan) -> Ran:
        self._send(plan)
        self._busy = threading.get_ident()
        try:
            ticket = self._runner.launch(plan)
            if self._check:
                self._compare(ticket.found)
        except BaseException as e:
            self._last[0] = None  # another engine takes this one's place
            if isinstance(e, PeerGone):
                raise self._gone(str(e)) from e
            raise
        finally:
            self._busy = None
        return ticket

    def expert_counts(self) -> ExpertCounts | None:
        return self._runner.expert_counts()

    def shard_load(self) -> ShardLoad | None:
        return self._runner.shard_load()

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        self._runner.read_pages(pages, into)

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        """On every rank: each has the whole latent."""
        self._send(PageData.of(pages, data))
        self._runner.write_pages(pages, data)

    def page_memory(self) -> None:
        """None, because data has to be written on every rank."""

    def check(self) -> None:
        """Raises PeerGone if no step can run any more."""
        self._ranks.check()

    def refuse(self, reason: str) -> None:
        self._last[0] = _refused(reason)
        self.close()  # now, because the supervisor ends this process after the error

    def _compare(self, result: StepResult) -> None:
        own = digest(result)
        for rank in range(1, self._ranks.size):
            found = self._receive(rank)
            assert found == own, f"rank {rank} found another result than rank 0"

    def _send(self, message: RequestState | str | Plan | PageData | Loaded) -> None:
        self.check()
        if not self._gang.links:
            return
        data = dumps(message)
        try:
            for link in self._gang.links:
                link.send_bytes(data)
        except GONE as e:
            raise self._gone("a rank has ended") from e

    def _receive(self, rank: int) -> object:
        try:
            found: object = receive(self._gang.links[rank - 1])
        except GONE as e:
            raise self._gone(f"rank {rank} has ended") from e
        return found

    def _refusal(self) -> Exception | None:
        """The error that a rank has sent before it ended."""
        for link in self._gang.links:
            with contextlib.suppress(*GONE):
                if link.poll() and isinstance(found := receive(link), Exception):
                    return found
        return None

    def _gone(self, reason: str) -> PeerGone:
        with self._lost:
            if not self._ranks.reason:
                log.critical("%s: this engine can run no more steps", reason)
                self._last[0] = None
                self._ranks.give_up(reason)
                if self.world is not None:
                    self.world.give_up(reason)
        self._gang.kill()
        if self._ranks.gpus is not None:
            self._end_if_stuck()
        return self._ranks.gone()

    def _end_if_stuck(self) -> None:
        """Ends this process if a thread waits for NCCL's kernels, or in Gloo for a silent machine: such a
        wait cannot be ended. Torch would do the same later."""
        until = time.monotonic() + STUCK_SECONDS
        while self._busy not in (None, threading.get_ident()):
            if time.monotonic() > until:
                log.critical("rank 0 waits for it without end: this process ends")
                os._exit(1)
            time.sleep(0.05)


def _refused(reason: object) -> Ended:
    return Ended(f"the engine does not start: {reason}")


# Functions of threads. They hold weak references, so that threads do not keep an unused executor alive.


def _watch(own: weakref.ref[TensorParallelExecutor], processes: Mapping[int, RankProcess]) -> None:
    """Notices at once when a process ends."""
    ended = connection.wait([process.sentinel for process in processes.values()])
    executor = own()
    if executor is None or not executor.close.alive:
        return
    for rank, process in processes.items():
        if process.sentinel in ended:
            executor._gone(f"rank {rank} has ended ({process.how_it_ended()})")


def _lost(own: weakref.ref[TensorParallelExecutor], rank: int, what: str) -> None:
    executor = own()
    if executor is not None and executor.close.alive:
        executor._gone(f"rank {rank} {what}")


def _end(gang: Gang, pulse: Pulse, last: list[Ended | None]) -> None:
    pulse.stop()
    gang.close(last[0])
    if not (gang.own.by_nccl and gang.own.reason):  # it would wait for the rank that has ended
        gang.own.leave_gpus()


def digest(result: StepResult) -> bytes:
    """A digest of the step's result, which must be the same on every rank."""
    return hashlib.blake2b(repr(result.spans).encode(), digest_size=8).digest()
