"""nextn eval: runs lm-eval on a server without MTP and on one with it, task by task, and compares the scores.

Both servers run all the time. While one answers, the other has no work, so it does not slow the first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nextn.bench.acceptance import read_counters
from nextn.bench.client import get
from nextn.bench.console import print_markdown
from nextn.bench.errors import BenchError
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.servers import last_lines_on_error
from nextn.bench.target import find_target
from nextn.eval.results import Results, Run, TaskResult
from nextn.eval.table import WITH, WITHOUT, table, verdict
from nextn.eval.tasks import RUNS_PROGRAMS
from nextn.tokenizer import Tokenizer

DEFAULT_LENGTH = 2048  # context length, if a server does not report one


@dataclass(frozen=True)
class Settings:
    tasks: Sequence[str]
    model_path: str
    num_steps: int | str  # or auto
    server_options: Sequence[str]  # for the servers that are started here
    base_urls: Sequence[str]  # of running servers: none, one, or two (without MTP, with MTP)
    tokenizer: str | None
    api_key: str | None
    limit: int | None
    num_fewshot: int | None
    concurrency: int
    include_path: Path | None
    runs_programs: bool
    chats: bool
    output_dir: Path
    bars: bool


class Side(NamedTuple):
    """A server that is ready."""

    name: str
    url: str
    model: str
    tokenizer: Tokenizer
    max_length: int


def run_eval(settings: Settings) -> int:
    """Runs the evaluation and returns the exit code: 0, or 1 if a score differs. Raises ValueError for errors
    that the user can fix, BenchError if a server or a request fails."""
    try:
        from nextn.eval.harness import Harness, load_tasks, quiet
    except ModuleNotFoundError as e:
        raise ValueError(f"nextn eval needs lm-eval ({e}); run: pip install 'nextn[eval]'") from e
    for name in RUNS_PROGRAMS:
        if name in settings.tasks and not settings.runs_programs:
            raise ValueError(
                f"--tasks {name} runs programs that the model writes; add --confirm-run-unsafe-code, and run "
                "it where that does no harm, such as in a container"
            )
    out = settings.output_dir
    out.mkdir(parents=True, exist_ok=True)
    log = out / "lm-eval.log"
    log.write_text("")
    say(f"loading {', '.join(settings.tasks)}")
    with quiet(log, settings.bars):
        manager = load_tasks(settings.tasks, settings.include_path)
    harness = Harness(
        manager,
        settings.limit,
        settings.num_fewshot,
        settings.concurrency,
        settings.runs_programs,
        settings.chats,
    )
    with ended_like_ctrl_c(), servers(settings) as urls:
        sides = [asyncio.run(find_side(settings, *named)) for named in urls.items()]
        tasks = []
        for name in settings.tasks:
            runs = []
            for side in sides:
                say(f"{name}, {side.name} …")
                before = asyncio.run(read_counters(side.url, settings.api_key))
                with quiet(log, settings.bars):
                    run = harness.run(name, side.url, side.model, side.tokenizer, side.max_length)
                after = asyncio.run(read_counters(side.url, settings.api_key))
                runs.append(dataclasses.replace(run, accept_length=accept_length(before, after)))
                say(f"{name}, {side.name}: {scores(name, run)}, {run.seconds:.1f} s")
            tasks.append(TaskResult(name, runs))
    results = Results(sides[-1].model, [side.name for side in sides], tasks, record(settings))
    (out / "results.json").write_text(json.dumps(results.record(), indent=1) + "\n")
    (out / "table.md").write_text(table(results, whole=True), encoding="utf-8")
    print_markdown(table(results, whole=False), sys.stdout)
    print(verdict(results))
    print(f"written: {out / 'table.md'}, {out / 'results.json'}")
    return 1 if results.differ else 0


@contextlib.contextmanager
def servers(settings: Settings) -> Iterator[dict[str, str]]:
    """Yields name -> URL of the servers: the running ones, or two that this function starts and ends."""
    if settings.base_urls:
        urls = [url.rstrip("/").removesuffix("/v1") for url in settings.base_urls]
        names = [WITHOUT, WITH] if len(urls) == 2 else ["score"]
        yield dict(zip(names, urls, strict=True))
        return
    out = settings.output_dir
    options = ["--model-path", settings.model_path, *settings.server_options, "--speculative-num-steps"]
    say(f"starting two servers on {settings.model_path}: {WITHOUT} and {WITH}")
    with (
        LocalServer(WITHOUT, [*options, "0"], out / "server-without-mtp.log") as without,
        LocalServer(WITH, [*options, str(settings.num_steps)], out / "server-with-mtp.log") as with_mtp,
    ):
        both = (without, with_mtp)
        with last_lines_on_error(*both):
            for server in both:
                server.wait_ready()
            yield {server.name: server.url for server in both}


async def find_side(settings: Settings, name: str, url: str) -> Side:
    """Asks a running server for its model. Raises BenchError if it does not answer, ValueError if its
    tokenizer is not on this machine."""
    try:
        served = (await get(url, "/v1/models", settings.api_key))["data"][0]
        model, length = str(served["id"]), served.get("max_model_len")
    except (KeyError, IndexError, TypeError) as e:
        raise BenchError(f"GET {url}/v1/models: no list of models; is it an OpenAI-compatible server?") from e
    tokenizer = (await find_target(url, model, settings.tokenizer, settings.api_key)).tokenizer
    if tokenizer is None:
        raise ValueError(
            f"the tokenizer of {model} is not on this machine; name its folder with --tokenizer DIR"
        )
    return Side(name, url, model, tokenizer, length or DEFAULT_LENGTH)


def accept_length(before: Any, after: Any) -> float | None:
    """Tokens per verify step between two readings of a server's counters: accepted drafts plus one."""
    if before is None or after is None:
        return None
    spec = after[1].since(before[1])
    return 1 + sum(spec.accepted) / spec.verify_steps if any(spec.proposed) else None


def scores(task: str, run: Run) -> str:
    return ", ".join(f"{metric} {value:.4f}" for (name, metric), value in run.scores.items() if name == task)


def record(settings: Settings) -> dict[str, Any]:
    return {
        "num_drafts": None if settings.base_urls else settings.num_steps,
        "limit": settings.limit,
        "num_fewshot": settings.num_fewshot,
        "concurrency": settings.concurrency,
        "chats": settings.chats,
        "machine": dataclasses.asdict(this_machine()),
    }


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
