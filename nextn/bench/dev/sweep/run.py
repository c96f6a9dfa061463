"""`nextn bench compare` starts servers, lets the sides take turns, and reports.

All servers run at once. A server that waits for its turn costs only memory.
"""

from __future__ import annotations

import contextlib
import json
import re
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvloop

from nextn.bench.acceptance import acceptance_since, read_counters
from nextn.bench.arrivals import poisson_arrivals
from nextn.bench.client import Load, Reply, make_client, measure_load
from nextn.bench.console import print_markdown
from nextn.bench.datasets import Sample
from nextn.bench.dev.sweep.contestant import Contestant, meet, salted
from nextn.bench.dev.sweep.identity import Identity
from nextn.bench.dev.sweep.plan import Turn, turns
from nextn.bench.dev.sweep.report import write_report
from nextn.bench.dev.sweep.results import Cell, Results, Row, SideInfo
from nextn.bench.dev.sweep.scenarios import check_fits, make_samples
from nextn.bench.dev.sweep.settings import Settings
from nextn.bench.dev.sweep.table import markdown, verdict
from nextn.bench.errors import BenchError
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.progress import Progress
from nextn.bench.servers import last_lines_on_error
from nextn.stats import SpecStats


def run_compare(settings: Settings) -> int:
    """Runs the comparison. Returns the exit code: 0, or 1 if a request failed or texts that must be equal
    differ.

    Raises ValueError and OSError for errors that the user can fix. Raises BenchError if a server does not
    start or answers no request, after it has printed the server's last lines to stderr.
    """
    settings.check()
    settings.output_dir.mkdir(parents=True, exist_ok=True)
    with (
        ended_like_ctrl_c(),
        Progress(settings.texts, settings.bar) as progress,
        started(settings, progress) as servers,
    ):
        results = uvloop.run(Comparison(settings, servers, progress).run())
    files = write_report(results, settings.output_dir)
    print_markdown(markdown(results), sys.stdout)
    print(verdict(results))
    print(f"written: {', '.join(map(str, files))}")
    if not sys.stdout.isatty():  # for scripts; the folder has it too
        print(json.dumps(results.as_dict(details=False)))
    return 0 if results.ok else 1


@contextlib.contextmanager
def started(settings: Settings, progress: Progress) -> Iterator[list[LocalServer | None]]:
    """Yields one entry for every side: a started server that is ready, or None for a running server."""
    own = sum(side.started for side in settings.sides)
    progress.now("start")
    if own:
        progress.say("starting 1 server" if own == 1 else f"starting {own} servers")
    with contextlib.ExitStack() as stack:
        servers = [
            stack.enter_context(LocalServer(side.name, settings.server_options(side), log_of(settings, i)))
            if side.started
            else None
            for i, side in enumerate(settings.sides)
        ]
        for server in servers:
            if server is not None:
                with last_lines_on_error(server):
                    server.wait_ready()
        yield servers


def log_of(settings: Settings, side: int) -> Path:
    name = re.sub(r"\W+", "-", settings.sides[side].name.lower()).strip("-")
    return settings.output_dir / f"server-{side + 1}-{name}.log"


class Comparison:
    """One run over everything in `settings`. `servers`: the list that `started` yields."""

    def __init__(self, settings: Settings, servers: Sequence[LocalServer | None], progress: Progress) -> None:
        self.settings, self.servers, self.progress = settings, servers, progress
        self.sides: list[Contestant] = []
        self.samples: list[list[list[Sample]]] = []  # by scenario and side

    async def run(self) -> Results:
        settings = self.settings
        for index, spec in enumerate(settings.sides):
            server = self.servers[index]
            key = settings.api_key if server is None else None
            url = spec.url if server is None else server.url
            assert url is not None
            self.sides.append(await meet(spec, url, settings.tokenizer, key))
        self.maker = self.sides[0].target.tokenizer
        salt = secrets.token_hex(4) if any(side.caches_prompts for side in self.sides) else None
        self.make_samples()
        identity = Identity.of(self.sides)
        rows = [
            [Row(level, [Cell() for _ in self.sides]) for level in settings.levels]
            for _ in settings.scenarios
        ]
        begin = time.perf_counter()
        await self.warm_up()
        for turn in turns(len(settings.scenarios), len(settings.levels), settings.rounds, len(self.sides)):
            await self.turn(turn, rows[turn.scenario][turn.level].cells[turn.side], identity, salt)
        return Results(
            sides=[self.info(side) for side in self.sides],
            scenarios=list(zip(settings.scenarios, rows, strict=True)),
            rounds=settings.rounds,
            temperature=settings.temperature,
            salt=salt,
            identity=identity,
            machine=this_machine(),
            seconds=time.perf_counter() - begin,
        )

    def make_samples(self) -> None:
        """Makes the prompts. Raises ValueError if a side's context is too short for a scenario."""
        contexts = [side.context for side in self.sides if side.context is not None]
        most = max(level.prompts for level in self.settings.levels)
        for scenario in self.settings.scenarios:
            for side in self.sides:
                check_fits(scenario, side.context, f"the side {side.spec.name}")
            made = make_samples(
                scenario, self.maker, most, self.settings.seed, min(contexts, default=None)
            )  # fmt: skip
            self.samples.append([side.takes(made, self.maker) for side in self.sides])

    async def warm_up(self) -> None:
        """Sends one short request to each side. Raises BenchError if one fails: the loads would fail too."""
        self.progress.now("warm-up")
        for index, side in enumerate(self.sides):
            with self.last_lines(index):
                load = await self.load(side, [side.warmup_body(self.samples[0][index][0])], [0.0], 1)
                if load.failures:
                    failure = load.failures[0]
                    raise BenchError(f"the side {side.spec.name}: the warm-up failed: {failure}")

    async def turn(self, turn: Turn, cell: Cell, identity: Identity, salt: str | None) -> None:
        settings, side = self.settings, self.sides[turn.side]
        scenario, level = settings.scenarios[turn.scenario], settings.levels[turn.level]
        where = f"{scenario.name}, {level}, {side.spec.name}, round {turn.round}"
        self.progress.now(where)
        samples = self.samples[turn.scenario][turn.side]
        first = 0  # number of the first prompt; equal numbers mean equal prompts
        if salt is not None:
            samples = salted(samples, f"{salt}.{turn.serial}", self.maker)
            first = turn.serial * len(samples)
        bodies = [side.body(s, settings.temperature, i) for i, s in enumerate(samples[: level.prompts])]
        arrivals = poisson_arrivals(len(bodies), level.request_rate, settings.seed)
        with self.last_lines(turn.side):
            url, key = side.target.url, side.target.api_key
            before = await read_counters(url, key)
            load = await self.load(side, bodies, arrivals, level.concurrency, progress=True)
            if not load.replies:
                failure = load.failures[0]
                raise BenchError(f"{where}: all {len(bodies)} requests failed, the first: {failure}")
            after = await read_counters(url, key)
            spec: SpecStats | None = None
            if before is not None and after is not None:
                spec = after[1].since(before[1])
            elif (said := await acceptance_since(url, None, key)) is not None:
                cell.lifetime = said.length
        found = cell.add(load, spec)
        for index, outcome in enumerate(load.outcomes):
            if isinstance(outcome, Reply):
                identity.add(turn.side, turn.scenario, first + index, outcome.text, where)
        failed = f", {len(load.failures)} failed" if load.failures else ""
        self.progress.say(
            f"{where} of {settings.rounds}: {found.requests} texts in {found.seconds:.1f} s, "
            f"{found.output_throughput:.1f} tok/s{failed}"
        )

    async def load(
        self,
        side: Contestant,
        bodies: list[dict[str, object]],
        arrivals: list[float],
        concurrency: int | None,
        progress: bool = False,
    ) -> Load:
        advance = self.progress.advance if progress else lambda: None
        async with make_client(side.target.url, self.settings.silence, side.target.api_key) as client:
            return await measure_load(client, side.api, bodies, arrivals, concurrency, advance)

    @contextlib.contextmanager
    def last_lines(self, side: int) -> Iterator[None]:
        server = self.servers[side]
        with contextlib.nullcontext() if server is None else last_lines_on_error(server):
            yield

    def info(self, side: Contestant) -> SideInfo:
        options = " ".join([*self.settings.common_options, *side.spec.options])
        return SideInfo(
            name=side.spec.name,
            where=side.spec.url or options or "nextn serve",
            backend=side.spec.backend,
            model=side.target.model,
            engine=side.info.get("engine") or {},
        )
