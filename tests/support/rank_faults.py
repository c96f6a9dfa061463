"""Ends or stops a rank at an exact point of a step, and reports what the others do.

    python -m support.rank_faults memory-dispatch-SIGKILL sockets-combine-SIGSTOP ...

A line of JSON for each case:

    said      lines of the log, and the error of each engine that raises one
    seconds   from the fault to the end of the first engine's process; null: there was no fault, or no end
    left      number of processes that still ran some seconds later
    files     new files in /dev/shm

A case is HOW-POINT-SIGNAL. How ranks are connected:

    memory    two ranks of one engine, on one machine
    sockets   two ranks of one engine, on two machines
    groups    two groups of one rank, on two machines
    engines   two groups of one rank, on one machine: each engine is a rank

The point at which rank 1 ends or stops, in a layer with experts:

    dispatch  after the step was agreed on, before its rows are offered
    shared    after its rows were offered
    combine   after rows have arrived, before its results
    results   after its results, before it has those of others
    counts    before the exchange of counts
    moving    when it has written the experts that leave it, before they are handed over
    moved     after that, before the meeting

For the points in a layer, the memory of a weight that is read there is made unreadable. The handler of the
fault ends or stops the process. All processes are forks of this one, which has no threads: so torch is
imported once."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import json
import logging
import mmap
import os
import signal
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from support.groups import config
from support.nodes import free_address
from support.played_groups import not_measured
from support.processes import session

from nextn.config import EngineConfig
from nextn.distributed.life import StopWatch, die_with_parent
from nextn.distributed.memory import Memory
from nextn.distributed.place import Place, places
from nextn.distributed.placement import Placement
from nextn.distributed.process import END_SECONDS, RankProcess, send_memories
from nextn.distributed.step_world import MovesBytes
from nextn.engine import build, gang, node, rank, tensor_rank
from nextn.engine.balance import Balancer
from nextn.engine.engine import Engine
from nextn.engine.shared_pass import SharedPass
from nextn.models.native import NativeModel
from nextn.ops.cpu import interface as kernels
from nextn.request import Request, SamplingParams

PASS = 5  # the pass of rank 1 in which it fails
READ_AT = {"dispatch": "router", "shared": "shared_gate_up", "combine": "gate_up", "results": "shared_down"}
LOOK, MOST, AFTER = 0.01, 6000, 1000  # seconds between looks; looks at a case, and at what it leaves
OPTIONS: dict[str, Any] = {
    "kv_cache_tokens": 256, "speculative_num_steps": 2, "ep_num_redundant_experts": 2, "enable_eplb": True,
    "eplb_rebalance_num_iterations": 2, "eplb_rebalance_layers_per_chunk": 1, "dist_timeout": 20.0,
}  # fmt: skip
libc = ctypes.CDLL(None, use_errno=True)


class Fault:
    """point, number: where rank 1 fails, and the signal that it sends itself. It writes the time."""

    def __init__(self, point: str, number: signal.Signals) -> None:
        self.point, self.number = point, number
        self._board = mmap.mmap(-1, mmap.PAGESIZE)  # shared with all forks
        self._passes = 0
        self._handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(self.happen)

    @property
    def at(self) -> float:
        return float(struct.unpack_from("d", self._board)[0])

    def happen(self, *_: object) -> None:
        struct.pack_into("d", self._board, 0, time.monotonic())
        os.kill(os.getpid(), self.number)
        while True:
            time.sleep(1)

    def arm(self) -> None:
        """To be called in rank 1."""
        libc.signal(signal.SIGSEGV, self._handler)
        forward, look = SharedPass.forward, Balancer._look

        def failing_forward(this: SharedPass, spans: Sequence[Any]) -> Any:
            self._passes += 1
            if self._passes == PASS and self.point in READ_AT:
                assert isinstance(this.model, NativeModel)
                last = this.model.weights.layers[this.model.config.num_hidden_layers - 1].mlp
                members = last.own if self.point == "combine" else 1
                make_unreadable(getattr(last, READ_AT[self.point]), members)
            return forward(this, spans)

        def failing_look(this: Balancer) -> None:
            if self.point == "counts":
                self.happen()
            this._world.hand_over = self._moving(this._world)  # type: ignore[method-assign]
            look(this)

        SharedPass.forward = failing_forward  # type: ignore[method-assign]
        Balancer._look = failing_look  # type: ignore[method-assign]

    def _moving(self, world: MovesBytes) -> Callable[..., None]:
        hand_over = type(world).hand_over

        def moving(parcels: Sequence[Any]) -> None:
            if self.point == "moving":
                self.happen()
            hand_over(world, parcels)
            if self.point == "moved":
                self.happen()

        return moving


def make_unreadable(weight: kernels.Weight, members: int) -> None:
    """The whole pages of this weight."""
    page = mmap.PAGESIZE
    begin = -(-weight.data // page) * page
    size = (weight.data + members * weight.stride - begin) // page * page
    assert size > 0
    if libc.mprotect(ctypes.c_void_p(begin), ctypes.c_size_t(size), 0):
        raise OSError(ctypes.get_errno(), "mprotect")


class ForkedRank(RankProcess):
    """The process of a rank, as a fork of this one."""

    fault: Fault

    def __init__(self, module: str, memories: Sequence[Memory]) -> None:
        ours, theirs = socket.socketpair()
        self.sentinel, alive = os.pipe()
        parent = os.getpid()
        self._pid = fork(lambda: self._run(theirs, ours, parent))
        theirs.close()
        os.close(alive)
        send_memories(ours, memories)
        self.link = Connection(ours.detach())
        self._code: int | None = None
        self.watch = StopWatch(self._pid)

    def _run(self, link: socket.socket, other: socket.socket, parent: int) -> int:
        other.close()
        os.close(self.sentinel)
        opened = tensor_rank.opened
        tensor_rank.opened = lambda arguments: _armed(opened(arguments), self.fault)  # type: ignore[assignment]
        return tensor_rank.main([str(link.detach()), str(parent)])

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def ended(self) -> bool:
        if self._code is None:
            found, status = os.waitpid(self._pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if found else None
        return self._code is not None

    def code(self) -> int:
        while not self.ended:
            time.sleep(0.005)
        assert self._code is not None
        return self._code

    def kill(self) -> None:
        if not self.ended:
            os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        self.link.close()
        until = time.monotonic() + END_SECONDS
        while not self.ended and time.monotonic() < until:
            time.sleep(0.005)
        self.kill()
        self.code()
        os.close(self.sentinel)


def _armed(found: tuple[Any, list[Memory], int], fault: Fault) -> tuple[Any, list[Memory], int]:
    """Arms this process if it is rank 1. The first message says so: it is read here, and again later."""
    leash, memories, parent = found
    configuration, number, *rest = leash.recv()
    if number == 1:
        fault.arm()

    class Read:
        """The link, whose first message has been read."""

        def __getattr__(self, name: str) -> Any:
            return getattr(leash, name)

        def recv(self) -> Any:
            return (configuration, number, *rest)

    return Read(), memories, parent


def fork(work: Callable[[], int]) -> int:
    """Runs `work` in a new process, which ends with the code that it returns."""
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        code = work()
    finally:
        sys.stderr.flush()
        os._exit(code)


def turned(present: Placement, counts: Any, shards: int, *_: object) -> Placement:
    """Every expert moves to the other shard."""
    return Placement(np.roll(present.physical, present.slots // shards, axis=1), present.experts)


def prepare(fault: Fault) -> None:
    build.time_steps = not_measured
    rank.Balancer = lambda *arguments: Balancer(*arguments, plan=turned)  # type: ignore[assignment,misc]
    ForkedRank.fault = fault
    gang.RankProcess = ForkedRank  # type: ignore[misc]
    logging.basicConfig(level=logging.CRITICAL, format="%(message)s")


def engine_of(given: EngineConfig, place: Place | None, asked: bool) -> int:
    """An engine's process: runs steps until one raises, and prints the error. asked: it has a request."""
    try:
        engine = Engine(given, lambda c: build.make_executor(c, place))
        if asked:
            params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
            engine.add(Request("a", [5, 6, 7], params))
        while True:
            if engine.wakes is not None:
                engine.wakes.hear()
            engine.check()
            if engine.must_step():
                engine.step()
            else:
                time.sleep(0.001)
    except Exception as e:
        sys.stderr.write(f"{type(e).__name__}: {e}\n")
        with contextlib.suppress(AttributeError):
            engine._executor.close()  # type: ignore[attr-defined]
    return 0


def case(how: str, fault: Fault) -> int:
    """The first process of a case."""
    os.setsid()
    prepare(fault)
    if how == "memory":
        return engine_of(_options(how), None, True)
    given = _options(how)
    if how == "engines":
        with places(2) as (first, second):
            fork(lambda: fault.arm() or engine_of(given, second, True))
            return engine_of(given, first, True)
    there = dataclasses.replace(given, node_rank=1)
    fork(lambda: node._run(there) and 0)
    if how == "sockets":
        return engine_of(given, None, True)
    with places(2) as (first, second):
        fork(lambda: engine_of(given, second, True))
        return engine_of(given, first, True)


def _options(how: str) -> EngineConfig:
    if how == "groups":
        return config(2, 1, 2, nnodes=2, dist_init_addr=free_address(), **OPTIONS)
    if how == "engines":
        return config(2, 1, 2, **OPTIONS)
    given = EngineConfig(tp_size=2, ep_size=2, threads=1, step_cost_cache="off", **OPTIONS)
    if how == "memory":
        return given
    return dataclasses.replace(given, nnodes=2, dist_init_addr=free_address())


def run(name: str) -> dict[str, Any]:
    how, point, number = name.split("-")
    fault = Fault(point, signal.Signals[number])
    files = set(Path("/dev/shm").iterdir())
    with tempfile.TemporaryFile() as said:

        def first(parent: int = os.getpid()) -> int:
            die_with_parent(parent)
            os.dup2(said.fileno(), 2)
            return case(how, fault)

        pid = fork(first)
        ended = 0
        for _ in range(MOST):  # looks, because all processes may be stopped for some time
            ended, _ = os.waitpid(pid, os.WNOHANG)
            if ended:
                break
            time.sleep(LOOK)
        seconds = time.monotonic() - fault.at if ended and fault.at else None
        for _ in range(AFTER):
            if not session(pid):
                break
            time.sleep(LOOK)
        left = session(pid)
        for process in left:
            os.kill(process, signal.SIGKILL)
        if not ended:
            os.waitpid(pid, 0)
        said.seek(0)
        lines = said.read().decode().splitlines()
    new = set(Path("/dev/shm").iterdir()) - files
    return {"said": lines, "seconds": seconds, "left": len(left), "files": len(new)}


def main(names: Sequence[str]) -> int:
    for name in names:
        print(json.dumps({"case": name, **run(name)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
