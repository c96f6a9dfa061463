"""Measures the gaps between a stream's chunks, when it runs alone and when there are expensive requests too.

An expensive request has a prompt as long as the context, log-probabilities of the whole prompt or many
choices. Some cases send many of them at once.

python benchmarks/gap_beside.py                                        # some 5 minutes on the embedded model
python benchmarks/gap_beside.py --case plain scored --rounds 1
python benchmarks/gap_beside.py --server-options "--chunked-prefill-size 64" --output-dir benchmarks/results

Each round starts a stream, times its usual gaps, sends the expensive requests, and times the gaps until these
have ended. A health check every 20 ms shows how long the HTTP process was busy with other work. Prompts are
random and new each time, so that only the choices of one request share pages through the prefix cache.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import json
import multiprocessing
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from last_line import tell

from nextn.bench.client import make_client
from nextn.bench.local_server import LocalServer
from nextn.bench.machine import this_machine
from nextn.config import EMBEDDED

SCORED = {"max_tokens": 0, "echo": True, "logprobs": 5}
PLAIN = {"max_tokens": 1}
CHOICES = {**SCORED, "n": 32}
WRITTEN = {**SCORED, "n": 32, "max_tokens": 8, "ignore_eos": True}  # prompts are 8 tokens shorter
# Case -> (body without the prompt, requests at once)
CASES: dict[str, tuple[dict[str, Any], int]] = {
    "plain": (PLAIN, 1),
    "scored": (SCORED, 1),
    "choices": (CHOICES, 1),
    "written choices": (WRITTEN, 1),
    "many plain": (PLAIN, 32),
    "many scored": (SCORED, 32),
}
USUAL_SECONDS = 1.5  # time of the stream alone, in each round
IDS = range(100, 250)  # the tokens of prompts
PING_SECONDS = 0.02


class Watcher:
    """Runs a stream, and a new one whenever it ends. `streams`: for each stream, the times of its chunks."""

    def __init__(self, client: httpx.AsyncClient, model: str, context: int) -> None:
        self.client, self.streams = client, [[time.perf_counter()]]
        self.body = {"model": model, "prompt": "def main():\n", "max_tokens": context - 64, "stream": True,
                     "ignore_eos": True, "temperature": 0}  # fmt: skip

    async def run(self) -> None:
        while True:
            arrivals: list[float] = []
            self.streams.append(arrivals)
            async with self.client.stream("POST", "/v1/completions", json=self.body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_raw():
                    arrivals.append(time.perf_counter())

    def gaps(self, begin: float, end: float) -> list[float]:
        """Gaps that overlap with the time from `begin` to `end`, in seconds."""
        return [b - a for arrivals in self.streams for a, b in pairwise(arrivals) if a < end and b > begin]


async def pings(client: httpx.AsyncClient, slowest: list[float]) -> None:
    while True:
        begin = time.perf_counter()
        (await client.get("/health")).raise_for_status()
        slowest.append(time.perf_counter() - begin)
        await asyncio.sleep(PING_SECONDS)


@contextlib.contextmanager
def beside(*works: Any) -> Iterator[None]:
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def one_round(
    sender: Executor, url: str, model: str, context: int, case: tuple[dict[str, Any], int], rng: random.Random
) -> dict[str, Any]:
    body, count = case
    length = context - max(1, body["max_tokens"])
    bodies = [{"model": model, "prompt": rng.choices(IDS, k=length), **body} for _ in range(count)]
    slowest: list[float] = []
    async with make_client(url) as client, make_client(url) as other:
        before = computed(await client.get("/metrics"))
        watcher = Watcher(client, model, context)
        with beside(watcher.run(), pings(other, slowest)):
            while len(watcher.streams[-1]) < 30:
                await asyncio.sleep(0.01)
            begin = time.perf_counter()
            await asyncio.sleep(USUAL_SECONDS)
            usual = watcher.gaps(begin, time.perf_counter())
            usual_pings = list(slowest)
            slowest.clear()
            begin = time.perf_counter()
            sizes = await asyncio.wrap_future(sender.submit(send, url, bodies))
            end = time.perf_counter()
            await asyncio.sleep(0.3)  # lets the last gap end
            gaps = watcher.gaps(begin, end)
        after = computed(await client.get("/metrics"))
    return {
        "usual": usual,
        "gaps": gaps,
        "seconds": end - begin,
        "bytes": sum(sizes),
        "computed": after - before,
        "pings": slowest,
        "usual_pings": usual_pings,
    }


def send(url: str, bodies: Sequence[dict[str, Any]]) -> list[int]:
    """Sends requests at once and returns the sizes of the answers, in bytes. It runs in a separate process,
    so that the timed stream does not wait for it. It only counts bytes, because client and server share the
    machine's cores."""

    def one(body: dict[str, Any]) -> int:
        host = url.removeprefix("http://")
        with contextlib.closing(HTTPConnection(host)) as connection:
            connection.request(
                "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
            )
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            total = 0
            while data := answer.read(1 << 20):
                total += len(data)
            return total

    with ThreadPoolExecutor(max(1, len(bodies))) as pool:
        return list(pool.map(one, bodies))


def computed(answer: httpx.Response) -> int:
    """Prompt tokens of all requests so far that were not in the prefix cache."""
    metrics = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if line[:1] != "#")
    return int(float(metrics["nextn:prompt_tokens_total"]) - float(metrics["nextn:cached_tokens_total"]))


def milliseconds(gaps: Sequence[float]) -> dict[str, float]:
    ordered = sorted(gaps)
    at99 = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
    return {name: round(1e3 * x, 2) for name, x in
            (("median", median(ordered)), ("p99", at99), ("max", ordered[-1]))}  # fmt: skip


def summed(rounds: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The results of one case, over all its rounds."""
    usual, gaps = ([g for r in rounds for g in r[name]] for name in ("usual", "gaps"))
    found: dict[str, Any] = {"usual_ms": milliseconds(usual), "beside_ms": milliseconds(gaps)}
    found["ratio_of_p99"] = round(found["beside_ms"]["p99"] / found["usual_ms"]["p99"], 2)
    found["ratio_of_medians"] = round(found["beside_ms"]["median"] / found["usual_ms"]["median"], 2)
    found["seconds"] = round(median(r["seconds"] for r in rounds), 3)
    found["prompt_tokens_computed"] = round(median(r["computed"] for r in rounds))
    found["answer_bytes"] = round(median(r["bytes"] for r in rounds))
    found["health_ms"] = milliseconds([p for r in rounds for p in r["pings"]])
    found["usual_health_ms"] = milliseconds([p for r in rounds for p in r["usual_pings"]])
    return found


def measure(url: str, names: Sequence[str], rounds: int, seed: int) -> dict[str, Any]:
    with httpx.Client(base_url=url, trust_env=False) as client:
        (model,) = client.get("/v1/models").json()["data"]
    context = int(model["max_model_len"])
    rng = random.Random(seed)
    taken: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as sender:
        sender.submit(send, url, []).result()
        for _ in range(rounds):
            for name in names:
                taken[name].append(
                    asyncio.run(one_round(sender, url, model["id"], context, CASES[name], rng))
                )
    found = {name: summed(each) for name, each in taken.items()}
    for name, each in found.items():
        print(f"{name}: {each}", file=sys.stderr, flush=True)
    return {"model": model["id"], "context": context, "cases": found}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--url", help="a running, idle server (default: one is started)")
    parser.add_argument("--server-options", default="", help="options of nextn serve, as one word")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    result: dict[str, Any] = {"options": args.server_options, "rounds": args.rounds}
    if args.url:
        result |= measure(args.url, args.case, args.rounds, args.seed)
    else:
        options = [
            "--model-path",
            args.model_path,
            "--log-level",
            "warning",
            *shlex.split(args.server_options),
        ]
        with (
            tempfile.TemporaryDirectory() as folder,
            LocalServer("under test", options, Path(folder) / "server.log") as server,
        ):
            server.wait_ready()
            result |= measure(server.url, args.case, args.rounds, args.seed)
    tell("gap-beside", {**result, "machine": dataclasses.asdict(this_machine())}, args.output_dir)
    return 0


if __name__ == "__main__":
    sys.exit(main())
