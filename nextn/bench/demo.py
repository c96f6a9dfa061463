"""The demo: it measures one model without and with MTP on the same real prompts, and compares the texts.

Two servers run. While one is measured the other is idle, which costs nothing. At each concurrency they take
turns (without, with, without, with), so that a machine that slows down slows both. Their prefix cache is off:
a repeated prompt is as much work as the first time.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import uvloop

from nextn.bench.acceptance import read_spec
from nextn.bench.apis import Body
from nextn.bench.client import get, post, run_load
from nextn.bench.completion import Completion
from nextn.bench.console import console
from nextn.bench.drafting import DraftingWatch
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.measure import Metrics, calculate_metrics
from nextn.bench.progress import Progress
from nextn.bench.prompts import asked_questions, heldout_prompts
from nextn.bench.report import write_report
from nextn.bench.results import Point, Results, Side
from nextn.bench.servers import last_lines_on_error
from nextn.bench.summary import next_commands, print_results
from nextn.bench.texts import Texts
from nextn.stats import SpecStats

# Concurrency -> sixteenths of the prompts that are sent. The slowest loads get the fewest prompts.
SIXTEENTHS = {1: 6, 4: 8, 16: 16}
SEEDED_EVERY = 3  # every third prompt is sampled, the others are greedy
TEMPERATURE = 0.7
REPORT = {"return_draft_depths": True, "return_draft_steps": True}
WITHOUT, WITH = "without MTP", "with MTP"


@dataclass(frozen=True)
class Settings:
    model_path: str
    num_steps: int | str  # draft depth, or "auto"
    max_tokens: int  # code: the exact length of every completion, as end tokens are ignored
    num_prompts: int
    rounds: int  # for each server at each concurrency
    output_dir: Path
    bar: bool
    server_options: Sequence[str] = ()  # for both servers
    questions: bool = False  # prompts are questions in the model's chat template instead of code

    def bodies(self, concurrency: int) -> list[Body]:
        """The requests at one concurrency. They are the first ones of the next higher concurrency's."""
        count = -(-self.num_prompts * SIXTEENTHS[concurrency] // 16)
        prompts = asked_questions(count, self.model_path) if self.questions else heldout_prompts(count)
        return [self._body(i, prompt) for i, prompt in enumerate(prompts)]

    def _body(self, index: int, prompt: str) -> Body:
        seeded = index % SEEDED_EVERY == SEEDED_EVERY - 1
        return {
            "prompt": prompt,
            "max_tokens": self.max_tokens,
            "ignore_eos": not self.questions,
            "temperature": TEMPERATURE if seeded else 0.0,
            "seed": index,
        }


def run_demo(settings: Settings) -> int:
    """Runs the demo and returns the exit code: 0, or 1 if a text differs. Raises BenchError if a server or a
    request fails, and ValueError for too many prompts."""
    texts = 2 * settings.rounds * sum(len(settings.bodies(c)) for c in SIXTEENTHS)
    out = settings.output_dir
    out.mkdir(parents=True, exist_ok=True)
    common = ["--model-path", settings.model_path, "--disable-radix-cache", *settings.server_options]
    common.append("--speculative-num-steps")
    with (
        ended_like_ctrl_c(),
        LocalServer(WITHOUT, [*common, "0"], out / "server-without-mtp.log") as without,
        LocalServer(WITH, [*common, str(settings.num_steps)], out / "server-with-mtp.log") as with_mtp,
        Progress(texts, settings.bar) as progress,
    ):
        servers = (without, with_mtp)
        with last_lines_on_error(*servers):
            progress.now("start")
            progress.say(f"starting two servers on {settings.model_path}: {WITHOUT} and {WITH}")
            for server in servers:
                server.wait_ready()
            results = uvloop.run(Demo(settings, servers, progress).run())
    files = write_report(results, out)
    print_results(results, console(sys.stdout))
    print("the prefix cache was off in both servers, so that every round computed all of its prompts")
    print(f"written: {', '.join(map(str, files))}")
    commands = next_commands(settings.model_path, results.model, os.environ, settings.questions)
    print("\nGo on with:", *commands, sep="\n  ")
    return 1 if results.texts.differences else 0


class Demo:
    """One run against two servers that are ready. `servers`: without and with MTP."""

    def __init__(
        self, settings: Settings, servers: tuple[LocalServer, LocalServer], progress: Progress
    ) -> None:
        self.settings, self.servers, self.progress = settings, servers, progress
        self.texts = Texts()

    async def run(self) -> Results:
        begin = time.perf_counter()
        bodies = self.settings.bodies(max(SIXTEENTHS))
        first = bodies[0]
        self.progress.now("warm-up")
        for server in self.servers:
            await run_load(server.url, [{**first, "max_tokens": 16}], 1)
        points = [await self._point(concurrency) for concurrency in SIXTEENTHS]
        with_mtp = self.servers[1]
        completion = await self._completion(with_mtp, first)
        return Results(
            model=with_mtp.model,
            engine=(await get(with_mtp.url, "/server_info"))["engine"],
            num_steps=self.settings.num_steps,
            max_tokens=self.settings.max_tokens,
            questions=self.settings.questions,
            temperature=TEMPERATURE,
            sampled=sum(body["temperature"] > 0 for body in bodies),
            machine=this_machine(),
            points=points,
            texts=self.texts,
            completion=completion,
            seconds=time.perf_counter() - begin,
        )

    async def _point(self, concurrency: int) -> Point:
        bodies = self.settings.bodies(concurrency)
        sides: dict[str, list[Metrics]] = {WITHOUT: [], WITH: []}
        spec, auto = SpecStats(), None
        for turn in range(1, self.settings.rounds + 1):
            for server in self.servers:
                where = f"concurrency {concurrency}, {server.name}"
                self.progress.now(where)
                before = await read_spec(server.url)
                async with DraftingWatch(server.url) as watch:  # on both servers, so that both pay its cost
                    load = await run_load(server.url, bodies, concurrency, self.progress.advance)
                if server.name == WITH:
                    auto = watch.found
                    spec.merge((await read_spec(server.url)).since(before))
                found = calculate_metrics(load)
                sides[server.name].append(found)
                for index, reply in enumerate(load.replies):
                    self.texts.add(index, reply.text, f"{where}, round {turn}")
                self.progress.say(
                    f"{where}, round {turn} of {self.settings.rounds}: {found.requests} texts in "
                    f"{found.seconds:.1f} s, {found.output_throughput:.1f} tok/s"
                )
        return Point(concurrency, len(bodies), Side(sides[WITHOUT]), Side(sides[WITH]), spec, auto)

    async def _completion(self, server: LocalServer, body: Body) -> Completion:
        """Requests the first prompt once more, with a report token by token. Its text is compared too."""
        self.progress.now("one completion token by token")
        answer = await post(server.url, "/v1/completions", {**body, **REPORT})
        choice = answer["choices"][0]
        self.texts.add(0, choice["text"], f"{server.name}, with draft depths")
        return Completion.of(body["prompt"], choice)
