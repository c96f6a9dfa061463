"""The demo of disaggregated prefill and decode. It sends the same long prompts to one server and, through a
gateway, to a prefill and a decode server. It compares every text and reports the mean time of each stage.

The one server has all threads; the two others have half of them each. While one side is measured the other
is idle, which costs nothing. At each concurrency they take turns. The prefix cache is off, so that each
prompt is computed every time.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import uvloop
from rich import box
from rich.console import Console
from rich.table import Table

from nextn.bench.apis import Body
from nextn.bench.client import get_text, run_load
from nextn.bench.console import console
from nextn.bench.demo import Settings
from nextn.bench.gateway import Gateway, free_port, need_gateway
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.measure import Metrics, calculate_metrics
from nextn.bench.progress import Progress
from nextn.bench.prompts import heldout_prompts
from nextn.bench.results import rounded
from nextn.bench.servers import last_lines_on_error
from nextn.bench.stage_plot import stages_by_side
from nextn.bench.stages import NAMES, Stages
from nextn.bench.texts import Texts
from nextn.bench.totals import totals
from nextn.config import usable_cores

ONE, TWO = "one server", "prefill and decode apart"
CONCURRENCIES = (1, 4, 8)
JOINED = 3  # held-out prompts in one long prompt


@dataclasses.dataclass(frozen=True)
class Row:
    """Means of one side at one concurrency, over the rounds."""

    concurrency: int
    side: str
    output_throughput: float
    ttft_ms: float
    itl_p50_ms: float
    itl_p99_ms: float
    stages: Stages


def bodies(settings: Settings) -> list[Body]:
    """Requests with long prompts; no two begin with the same held-out prompt. Every third is sampled, the
    others are greedy."""
    parts = heldout_prompts(settings.num_prompts)
    prompts = ["\n".join(parts[(i + k) % len(parts)] for k in range(JOINED)) for i in range(len(parts))]
    return [
        {
            "prompt": prompt, "max_tokens": settings.max_tokens, "ignore_eos": True, "seed": i,
            "temperature": 0.7 if i % 3 == 2 else 0.0,
        }
        for i, prompt in enumerate(prompts)
    ]  # fmt: skip


def run_demo_apart(settings: Settings, threads: int | None) -> int:
    """Runs the demo and returns the exit code: 0, or 1 if a text differs. `threads`: threads of the one
    server; None: all usable cores. Raises BenchError."""
    need_gateway()
    threads = threads or usable_cores()
    out, port = settings.output_dir, free_port()
    out.mkdir(parents=True, exist_ok=True)
    common = ["--model-path", settings.model_path, "--disable-radix-cache", *settings.server_options]
    common += ["--speculative-num-steps", str(settings.num_steps)]
    half = [*common, "--threads", str(max(1, threads // 2)), "--disaggregation-mode"]
    prefills = [*half, "prefill", "--disaggregation-bootstrap-port", str(port)]
    count = 2 * settings.rounds * len(CONCURRENCIES) * settings.num_prompts
    with (
        ended_like_ctrl_c(),
        LocalServer(ONE, [*common, "--threads", str(threads)], out / "server-one.log") as one,
        LocalServer("prefill", prefills, out / "server-prefill.log") as prefill,
        LocalServer("decode", [*half, "decode"], out / "server-decode.log") as decode,
        Progress(count, settings.bar) as progress,
        last_lines_on_error(one, prefill, decode),
    ):
        progress.now("start")
        progress.say(f"starting on {settings.model_path}: {ONE}, and a prefill and a decode server")
        for server in (one, prefill, decode):
            server.wait_ready()
        with Gateway(prefill.url, port, decode.url, out / "gateway.log") as gateway:
            gateway.wait_ready()
            demo = DemoApart(settings, {ONE: one.url, TWO: gateway.url}, (one, prefill, decode), progress)
            uvloop.run(demo.run())
    write(demo, out)
    show(demo, console(sys.stdout))
    print(f"written: {', '.join(str(out / name) for name in (PICTURE, RESULTS))}")
    return 1 if demo.texts.differences else 0


class DemoApart:
    """One run. `urls`: side -> the URL that gets its requests. `servers`: one, prefill, decode."""

    def __init__(
        self, settings: Settings, urls: Mapping[str, str], servers: Sequence[LocalServer], progress: Progress
    ) -> None:
        self.settings, self.urls, self.progress = settings, urls, progress
        self.one, self.prefill, self.decode = servers
        self.model = self.one.model
        self.texts, self.rows = Texts(), list[Row]()
        self.handed_over: dict[str, float] = {}  # counters of the decode server
        self.seconds = 0.0

    async def run(self) -> None:
        begin = time.perf_counter()
        self.progress.now("warm-up")
        asked = [{"model": self.model, **body} for body in bodies(self.settings)]
        for url in self.urls.values():
            await run_load(url, [{**asked[0], "max_tokens": 16}], 1)
        for concurrency in CONCURRENCIES:
            found: dict[str, list[Row]] = {side: [] for side in self.urls}
            for turn in range(1, self.settings.rounds + 1):
                for side in self.urls:
                    found[side].append(await self._round(side, concurrency, turn, asked))
            self.rows += [mean_row(rows) for rows in found.values()]
        counted = await self._totals(self.decode)
        names = ("finished", "fallbacks", "bytes", "seconds")
        self.handed_over = {name: counted[f"transfer_{name}"] for name in names}
        self.seconds = time.perf_counter() - begin

    async def _round(self, side: str, concurrency: int, turn: int, asked: Sequence[Body]) -> Row:
        where = f"concurrency {concurrency}, {side}"
        self.progress.now(where)
        servers = (self.one,) if side == ONE else (self.prefill, self.decode)
        before = [await self._totals(server) for server in servers]
        load = await run_load(self.urls[side], asked, concurrency, self.progress.advance)
        spans = [(was, await self._totals(server)) for was, server in zip(before, servers, strict=True)]
        for index, reply in enumerate(load.replies):
            self.texts.add(index, reply.text, f"{where}, round {turn}")
        found = calculate_metrics(load)
        stages = Stages.of_one(found, *spans) if side == ONE else Stages.of_two(found, *spans)
        self.progress.say(f"{where}, round {turn}: {found.requests} texts in {found.seconds:.1f} s")
        return row(concurrency, side, found, stages)

    async def _totals(self, server: LocalServer) -> Mapping[str, float]:
        return totals(await get_text(server.url, "/metrics"))


def row(concurrency: int, side: str, found: Metrics, stages: Stages) -> Row:
    itl = found.itl_ms
    return Row(
        concurrency, side, found.output_throughput, found.ttft_ms.mean, itl.median, itl.p99, stages
    )  # fmt: skip


def mean_row(rows: Sequence[Row]) -> Row:
    def mean(values: Sequence[float]) -> float:
        return sum(values) / len(values)

    stages = Stages(*(mean([getattr(r.stages, name) for r in rows]) for name in NAMES))
    return Row(
        rows[0].concurrency, rows[0].side, mean([r.output_throughput for r in rows]),
        mean([r.ttft_ms for r in rows]), mean([r.itl_p50_ms for r in rows]),
        mean([r.itl_p99_ms for r in rows]), stages,
    )  # fmt: skip


PICTURE, RESULTS = "where-the-time-went.png", "results.json"


def write(demo: DemoApart, folder: Path) -> None:
    title = f"{demo.model}: where the time of a request went"
    (folder / PICTURE).write_bytes(stages_by_side(title, demo.rows))
    differences = demo.texts.differences
    found: dict[str, Any] = {
        "model": demo.model, "max_tokens": demo.settings.max_tokens, "seconds": demo.seconds,
        "rows": [dataclasses.asdict(each) for each in demo.rows], "handed_over": demo.handed_over,
        "texts": {
            "prompts": demo.texts.prompts, "compared": demo.texts.compared, "differ": len(differences),
            "first_difference": dataclasses.asdict(differences[0]) if differences else None,
        },
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    (folder / RESULTS).write_text(json.dumps(rounded(found), indent=1) + "\n")


def show(demo: DemoApart, out: Console) -> None:
    """Prints the table and the comparison of the texts, at most 100 columns wide."""
    out.print(f"{demo.model}; {demo.settings.max_tokens} new tokens a prompt", soft_wrap=True)
    out.print(this_machine().line, soft_wrap=True)
    made = Table(
        box=box.HORIZONTALS, padding=(0, 1, 0, 0), pad_edge=False, header_style="", border_style="dim"
    )  # fmt: skip
    made.add_column("at\nonce", justify="right", no_wrap=True)
    made.add_column("\nserver", no_wrap=True)
    for name in ("\ntok/s", "TTFT\nms", "ITL ms\np50", "\np99", *(f"{word}\nms" for word in NAMES)):
        made.add_column(name, justify="right", no_wrap=True)
    for each in demo.rows:
        values = (each.output_throughput, each.ttft_ms, each.itl_p50_ms, each.itl_p99_ms)
        columns = [f"{value:.1f}" for value in values]
        columns += [f"{getattr(each.stages, name):.0f}" for name in NAMES]
        made.add_row(str(each.concurrency), "one" if each.side == ONE else "apart", *columns)
    out.print(made)
    texts, moved = demo.texts, demo.handed_over
    out.print(f"{texts.compared} texts of {texts.prompts} prompts compared, {len(texts.differences)} differ")
    for difference in texts.differences[:1]:
        out.print(str(difference), markup=False, highlight=False)
    out.print(
        f"{moved['finished']:.0f} prompts were handed over, {moved['bytes'] / 1e6:.1f} MB; "
        f"{moved['fallbacks']:.0f} the decode server computed itself",
        soft_wrap=True,
    )
