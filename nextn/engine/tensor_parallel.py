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
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from nextn.config import EngineConfig, usable_cores
from nextn.distributed.group import PeerGone
from nextn.distributed.life import die_with_parent
from nextn.distributed.numa import pin
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
        spawn = multiprocessing.get_context("spawn")
        self._links: list[Connection] = []
        self.processes: list[BaseProcess] = []
        ends: list[Callable[[], None]] = [memory.close]
        self.close = weakref.finalize(self, _end, self._links, self.processes, ends)
        for rank in range(1, size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_serve, args=(config, rank, memory, os.getpid(), theirs), name=f"nextn-tp{rank}",
                daemon=True,
            )  # fmt: skip
            process.start()
            theirs.close()  # or it would never be at its end
            self._links.append(ours)
            self.processes.append(process)
        self._ranks = ranks_of(config, 0, memory)
        if config.numa == "auto":
            pin(0, size)
        self._lost = threading.Lock()
        own = weakref.ref(self)
        args = (own, self.processes)
        threading.Thread(target=_watch, args=args, name="nextn-ranks", daemon=True).start()
        try:
            self._runner = make_runner(config, self._ranks)
            for rank, link in enumerate(self._links, start=1):
                made = self._receive(rank, link)
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
        for rank, link in enumerate(self._links, start=1):
            found = self._receive(rank, link)
            assert found == own, f"rank {rank} found another result than rank 0"

    def _send(self, message: RequestState | str | Plan) -> None:
        self.check()
        data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        try:
            for link in self._links:
                link.send_bytes(data)
        except GONE as e:
            raise self._gone("a rank has ended") from e

    def _receive(self, rank: int, link: Connection) -> object:
        try:
            found: object = link.recv()
        except GONE as e:
            raise self._gone(f"rank {rank} has ended") from e
        return found

    def _gone(self, reason: str) -> PeerGone:
        with self._lost:
            if not self._ranks.reason:
                log.critical("%s: this engine can run no more steps", reason)
        self._ranks.give_up(library(), reason)
        return self._ranks.gone()


# In threads, which must not keep an executor that nobody else needs.


def _watch(own: weakref.ref[TensorParallelExecutor], processes: Sequence[BaseProcess]) -> None:
    """Notices at once when a process ends."""
    ended = connection.wait([process.sentinel for process in processes])
    executor = own()
    if executor is None or not executor.close.alive:
        return
    for rank, process in enumerate(processes, start=1):
        if process.sentinel in ended:
            process.join()
            executor._gone(f"rank {rank} has ended ({how_it_ended(process.exitcode)})")


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


def how_it_ended(code: int | None) -> str:
    return f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"


def _end(
    links: Sequence[Connection], processes: Sequence[BaseProcess], ends: Sequence[Callable[[], None]]
) -> None:
    for link in links:
        link.close()
    for process in processes:
        process.join(END_SECONDS)
        if process.exitcode is None:
            process.kill()  # a stopped one too
            process.join()
    for end in ends:
        end()


def _serve(config: EngineConfig, rank: int, memory: Memory, parent: int, link: Connection) -> None:
    """The main function of every rank but 0. It ends with rank 0, whose end of the pipe is closed then."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group
    ranks = ranks_of(config, rank, memory)
    # What every rank would say, rank 0 says.
    logging.basicConfig(level=logging.WARNING, format=f"[tp{rank}] %(name)s: %(message)s")
    if config.numa == "auto":
        pin(rank, config.tp_size)
    try:
        runner = make_runner(config, ranks)
    except Exception as e:
        if not isinstance(e, (ValueError, OSError)):
            traceback.print_exc()
        link.send(e)
        return
    link.send(runner.info)

    def lost(silent: int) -> None:
        if silent == 0:
            log.critical("rank 0 does not answer; all ranks end")
            if os.getppid() == parent:
                os.kill(parent, signal.SIGKILL)  # for its supervisor to start another
            os._exit(1)

    pulse = Pulse(ranks, lost)
    try:
        while True:
            message: RequestState | str | Plan = pickle.loads(link.recv_bytes())
            if isinstance(message, RequestState):
                runner.add(message)
            elif isinstance(message, str):
                runner.drop(message)
            else:
                result = runner.launch(message).result()
                if config.check_integrity:
                    link.send(digest(result))
    except (*GONE, PeerGone):
        pass  # rank 0 says what there is to say
    except Exception:
        log.critical("rank %d failed and ends:\n%s", rank, traceback.format_exc())
        sys.exit(1)
    finally:
        pulse.stop()
