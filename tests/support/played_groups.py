"""Two groups of --enable-dp-attention with the torch model: group 0's engine in this process, group 1's in
another.

Threads, as in support.groups, are not possible: torch.distributed has one group of ranks per process.

with two_groups(config) as (first, second):
    second.start(jobs)
    found = second.found(first)  # meanwhile the engine here keeps step
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import select
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from nextn.distributed.place import Place, places
from nextn.engine import build
from nextn.engine.engine import Engine
from nextn.request import Request
from nextn.server.process.engine_process import make_engine
from nextn.server_config import ServerConfig
from nextn.speculative.depth.cost import StepCost

Found = list[tuple[str, tuple[int, ...]]]
COST = StepCost(2e-3, 1e-4, 5e-4, (8, 2), a_pass=3e-4, pass_row=2e-5, request=5e-5)  # drafts pay


def not_measured(*_: object, **__: object) -> tuple[StepCost, bool]:
    """Replaces the measurement of step costs, which takes a hundred steps."""
    return COST, False


def tokens(engine: Engine, jobs: Sequence[Request]) -> Found:
    """(request, tokens) of each output, sorted by request. The number of tokens in a step shows how many
    drafts were accepted."""
    for job in jobs:
        engine.add(dataclasses.replace(job))
    found: Found = []
    while engine.has_work():
        found += keep_step(engine)
    return sorted(found, key=lambda each: each[0])


def keep_step(engine: Engine) -> Found:
    """Runs a step if this engine has work or the other one makes a step. Returns its outputs."""
    if engine.wakes is not None and not engine.must_step():
        select.select([engine.wakes], [], [], 0.01)
        engine.wakes.hear()
    return [(out.rid, tuple(out.tokens)) for out in engine.step()] if engine.must_step() else []


class Second:
    def __init__(self, link: Connection, pid: int) -> None:
        self.link, self.pid = link, pid

    def start(self, jobs: Sequence[Request]) -> None:
        self.link.send(list(jobs))

    def found(self, first: Engine) -> Found:
        while not self.link.poll(0):
            keep_step(first)
        found: Found = self.link.recv()
        return found


@contextlib.contextmanager
def two_groups(config: ServerConfig) -> Iterator[tuple[Engine, Second]]:
    """config: with --overlap-schedule on, as on GPUs."""
    config = config.of_replica()
    spawn = multiprocessing.get_context("spawn")
    with places(2) as (here, there):
        link, theirs = spawn.Pipe()
        process = spawn.Process(target=_serve, args=(config, there, theirs), daemon=True)
        process.start()
        theirs.close()
        assert process.pid is not None
        with contextlib.ExitStack() as undo:
            undo.callback(process.join)
            undo.callback(process.kill)
            engine = make_engine(config, here)
            thread: Any = engine._executor  # the thread that runs steps ahead
            undo.callback(thread._own._own.close)
            undo.callback(thread.close)
            thread._own.others.pulse.stop()  # a missing pulse would end this process
            yield engine, Second(link, process.pid)


def _serve(config: ServerConfig, place: Place, link: Connection) -> None:
    build.time_steps = not_measured
    engine = make_engine(config, place)
    while True:
        if link.poll(0):
            found = tokens(engine, link.recv())
            link.send(found)
        keep_step(engine)
