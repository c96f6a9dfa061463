"""Compares automatic depth with no MTP in the first seconds of a server that has just become ready.

    python benchmarks/cold_start.py [--concurrency 1,4,16,64] [--starts 10] [--seconds 2] [--output FOLDER]
                                    [--cpu-isa avx2] [--threads 2]

The servers are started in turns, one at a time: a new one for each load and side, without a file of step
costs and without a prefix cache. There is no warm-up: the load begins when the server is ready, and the
tokens that arrive within --seconds are counted. Both sides get the same greedy requests in the same order. A
stream whose text ends sends the next request.

Claim: automatic depth outputs at least 0.97 times as many tokens as no MTP, by the medians over all starts.
The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import tempfile
import time
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import httpx
from depth_claims import (
    NO_COST_FILE,
    add_engine_options,
    add_shared_options,
    check_claim,
    positive,
    positives,
    run_script,
    seconds,
)
from last_line import tell

from nextn.bench.apis import GENERATE
from nextn.bench.client import events, get, make_client, refusal
from nextn.bench.errors import BenchError
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.prompts import all_heldout_prompts
from nextn.bench.servers import last_lines_on_error
from nextn.config import model_folder
from nextn.tokenizer.tokenizer import Tokenizer

SIDES = {"none": "0", "auto": "auto"}  # --speculative-num-steps
TEXT_TOKENS = 128  # end tokens are ignored


class Start(NamedTuple):
    """One start of a server. ready: seconds until the server was ready. engine: the server's report of its
    engine."""

    tokens: int
    ready: float
    engine: dict[str, Any]


def server_options(args: argparse.Namespace, side: str) -> list[str]:
    options = ["--model-path", args.model_path, "--cpu-isa", args.cpu_isa, "--disable-radix-cache"]
    options += ["--speculative-num-steps", SIDES[side]]
    if args.threads is not None:
        options += ["--threads", str(args.threads)]
    for name, value in NO_COST_FILE.items():
        options += [f"--{name.replace('_', '-')}", value]
    return options


def run_start(args: argparse.Namespace, side: str, prompts: Sequence[list[int]], concurrency: int) -> Start:
    """Starts a server and runs the load. Raises BenchError if the server does not start or refuses a
    request."""
    with tempfile.TemporaryDirectory(prefix="nextn-cold-start-") as folder:
        begin = time.perf_counter()
        log = Path(folder) / "server.log"
        with LocalServer(side, server_options(args, side), log) as server, last_lines_on_error(server):
            server.wait_ready()
            ready = time.perf_counter() - begin
            tokens = asyncio.run(count_tokens(server.url, prompts, concurrency, args.seconds))
            engine = asyncio.run(get(server.url, "/server_info"))["engine"]
            return Start(tokens, ready, engine)


async def count_tokens(url: str, prompts: Sequence[list[int]], concurrency: int, seconds: float) -> int:
    """Runs `concurrency` streams at once and counts the tokens that arrive within `seconds`."""
    bodies = cycle([GENERATE.body(None, prompt, TEXT_TOKENS, True) for prompt in prompts])
    counts: list[int] = []  # of each request

    async def stream() -> None:
        while True:
            counts.append(0)
            await read(client, next(bodies), counts, len(counts) - 1)

    async with make_client(url) as client:
        tasks = [asyncio.create_task(stream()) for _ in range(concurrency)]
        done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
        total = sum(counts)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()
    return total


async def read(client: httpx.AsyncClient, body: Any, counts: list[int], at: int) -> None:
    """Sends one request and updates counts[at], the number of its tokens so far."""
    try:
        async with client.stream("POST", GENERATE.path, json=GENERATE.streamed(body)) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, await response.aread())
            async for data in events(response.aiter_bytes()):
                chunk = json.loads(data)
                if "error" in chunk:
                    raise refusal(response.status_code, data)
                counts[at] = GENERATE.read(chunk).completion_tokens or 0
    except httpx.HTTPError as e:
        raise BenchError(f"POST {client.base_url.join(GENERATE.path)}: {type(e).__name__}: {e}") from e


def summary(requests: int, starts: dict[str, list[Start]], seconds: float) -> dict[str, Any]:
    """A row of the result. Raises BenchError if one of the starts without MTP output no token."""
    tokens = {side: [start.tokens for start in found] for side, found in starts.items()}
    if not min(tokens["none"]):
        raise BenchError(f"at {requests} requests no token came within {seconds} s; raise --seconds")
    return {
        "requests": requests,
        "ratio": median(tokens["auto"]) / median(tokens["none"]),
        "tokens": tokens,
        "each_time": [a / n for a, n in zip(tokens["auto"], tokens["none"], strict=True)],
        "ready_s": {side: [start.ready for start in found] for side, found in starts.items()},
    }


def measure(args: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the rows of the result, and the report of an engine with automatic depth."""
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    prompts = [tokenizer.encode(text)[: args.prompt_tokens] for text in all_heldout_prompts()]
    rows = []
    print("| requests | none, tokens | auto, tokens | auto over none | none, ready after s | auto |")
    print("|--:|--:|--:|--:|--:|--:|", flush=True)
    for n in args.concurrency:
        found: dict[str, list[Start]] = {side: [] for side in SIDES}
        order = list(SIDES)
        for _ in range(args.starts):
            for side in order:
                found[side].append(run_start(args, side, prompts, n))
            order.reverse()
        rows.append(row := summary(n, found, args.seconds))
        tokens, ready = ({side: median(row[key][side]) for side in SIDES} for key in ("tokens", "ready_s"))
        print(
            f"| {n} | {tokens['none']:.0f} | {tokens['auto']:.0f} | {row['ratio']:.3f} "
            f"| {ready['none']:.2f} | {ready['auto']:.2f} |",
            flush=True,
        )
    return rows, found["auto"][0].engine


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    add_engine_options(parser)
    parser.add_argument("--concurrency", type=positives, default="1,4,16,64", help="requests at once")
    parser.add_argument(
        "--starts", type=positive, default=10, help="starts of each side (default: %(default)s)"
    )
    parser.add_argument(
        "--seconds", type=seconds, default=2.0, help="duration of each load (default: %(default)s)"
    )
    parser.add_argument(
        "--prompt-tokens",
        type=positive,
        default=16,
        help="tokens of a prompt; few, so that most time is decoding (default: 16)",
    )
    args = parser.parse_args()
    with ended_like_ctrl_c():
        rows, engine = measure(args)
    what = f"tokens of the first {args.seconds:g} s, auto over none"
    claim = check_claim(what, {f"{row['requests']} requests": row["ratio"] for row in rows})
    result = {
        "loads": rows, "claim": claim, "model": args.model_path, "starts": args.starts,
        "seconds": args.seconds, "prompt_tokens": args.prompt_tokens, "engine": engine,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("cold-start", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
