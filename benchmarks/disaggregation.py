"""Measures how much long prompts disturb streams: a prefill and a decode server against one server.

    python benchmarks/disaggregation.py                                  # embedded model, some 5 minutes
    python benchmarks/disaggregation.py --model-path 1b --input-len 512 --interval 4 --backend shm
    python benchmarks/disaggregation.py --rounds 1 --prompts 6           # a trial

The prefill and the decode server have one core each; the one server has both cores. Some streams always run:
when one ends, the next begins. Meanwhile long prompts arrive at fixed intervals. The driver sends each
request to both servers, as a gateway does, and reads the decode server's answer. The sides take turns. Each
round has new prompts, the same on both sides, and the texts must be equal. Ratios are one server over two,
medians over the rounds, so that above 1 two servers are better (throughput is two over one).

At the end, the decode server fetches the pages of prompts that the prefill server has computed already, one
prompt after another. The time is from when it can take pages until it has all of them. So the rate has no
computing in it, but all that happens once for each prompt. A plain socket's rate and a copy in memory are for
comparison (page_transfer.py has the rate of large transfers). The last line is JSON. The exit code is 1 if a
text differs.

Claim: p99 of the time between tokens at least 2 times better.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import os
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from apart import Alone, Apart
from depth_claims import positive, run_script
from last_line import tell
from rates import copy_rate, socket_rate

from nextn.bench.client import Reply, make_client
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.bench.measure import Spread
from nextn.bench.prompts import all_heldout_prompts
from nextn.bench.servers import last_lines_on_error
from nextn.bench.texts import Texts
from nextn.bench.totals import grown
from nextn.config import EMBEDDED

IDS = range(100, 250)  # the tokens of long prompts
STREAM_TOKENS = 256
ANSWER_TOKENS = 16  # of a long prompt
FETCHES = 8
BETTER_WHEN_LOWER = ("itl_p50_ms", "itl_p99_ms", "ttft_p50_ms", "ttft_p99_ms")


@dataclasses.dataclass
class Found:
    """The results of one side in one round. itl: times between tokens of the running streams, while long
    prompts arrived and were answered. ttft: times to first token of the long prompts."""

    itl_p50_ms: float
    itl_p99_ms: float
    itl_max_ms: float
    ttft_p50_ms: float
    ttft_p99_ms: float
    tokens_per_s: float
    handed_over: float
    fallbacks: float
    transferred_bytes: float


class Streams:
    """`count` requests that always run: when one ends, the next begins. `replies`: replies of the requests
    that have ended, by number."""

    def __init__(self, sender: Alone, count: int) -> None:
        self.sender, self.replies = sender, dict[int, Reply]()
        self.prompts, self.next, self.ending = all_heldout_prompts(), 0, False
        self.tasks = [asyncio.ensure_future(self._run()) for _ in range(count)]

    async def _run(self) -> None:
        while not self.ending:
            index = self.next
            self.next += 1
            body = {"prompt": self.prompts[index % len(self.prompts)], "max_tokens": STREAM_TOKENS,
                    "temperature": 0.7, "seed": index, "ignore_eos": True}  # fmt: skip
            self.replies[index] = await self.sender.send(body)

    async def end(self) -> None:
        """Waits until the running requests have ended. Raises RequestError if one failed."""
        self.ending = True
        await asyncio.gather(*self.tasks)

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between chunks, for all gaps that overlap with this time."""
        pairs = [pair for reply in self.replies.values() for pair in pairwise(reply.arrivals)]
        return [b - a for a, b in pairs if a < end and b > begin]


async def one_round(
    sender: Alone, prompts: Sequence[Sequence[int]], args: argparse.Namespace, texts: Texts, number: int
) -> Found:
    """Runs one round on one side. `prompts`: the long prompts of this round."""
    streams = Streams(sender, args.streams)
    await asyncio.sleep(args.warm_up)
    before, begin = await sender.totals(), time.perf_counter()

    async def arrive(index: int, prompt: Sequence[int]) -> Reply:
        await asyncio.sleep(max(0.0, begin + index * args.interval - time.perf_counter()))
        body = {"prompt": list(prompt), "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
        return await sender.send(body)

    replies = await asyncio.gather(*(arrive(i, prompt) for i, prompt in enumerate(prompts)))
    end, after = time.perf_counter(), await sender.totals()
    await streams.end()
    for index, reply in enumerate(replies):
        texts.add(1000 * number + index, reply.text, f"{sender.name}, round {number}, long prompt")
    for index, reply in streams.replies.items():
        texts.add(-1 - index, reply.text, f"{sender.name}, round {number}, stream")
    itl, ttft = Spread.of(streams.gaps(begin, end)), Spread.of([reply.ttft for reply in replies])
    return Found(
        itl.median, itl.p99, itl.max, ttft.median, ttft.p99,
        grown(before, after, "generation_tokens") / (end - begin),
        *(grown(before, after, f"transfer_{name}") for name in ("finished", "fallbacks", "bytes")),
    )  # fmt: skip


async def fetch_rate(apart: Apart, rng: random.Random, length: int) -> dict[str, float]:
    """The rate of fetching the pages of prompts that are computed. The decode server has none of them."""
    before = await apart.totals()
    for _ in range(FETCHES):
        await apart.send_in_turn({"prompt": rng.choices(IDS, k=length), "max_tokens": 1})
    after = await apart.totals()
    names = ("finished", "bytes", "seconds")
    prompts, size, seconds = (grown(before, after, f"transfer_{name}") for name in names)
    rate = size / seconds if seconds else 0.0
    return {"prompts": prompts, "bytes": size, "seconds": seconds, "bytes_per_s": rate}


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """Processes started within this context run on these cores."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


async def measure(sides: Sequence[Alone], args: argparse.Namespace) -> tuple[dict[str, list[Found]], Texts]:
    found: dict[str, list[Found]] = {side.name: [] for side in sides}
    texts, rng = Texts(), random.Random(args.seed)
    for number in range(args.rounds + 1):  # round 0 is warm-up
        prompts = [rng.choices(IDS, k=args.input_len) for _ in range(args.prompts)]
        for side in sides if number % 2 else sides[::-1]:
            each = await one_round(side, prompts, args, texts, number)
            print(f"round {number}, {side.name}: {each}", file=sys.stderr, flush=True)
            if number:
                found[side.name].append(each)
    return found, texts


def ratios(found: dict[str, list[Found]]) -> dict[str, dict[str, Any]]:
    def each(name: str) -> list[float]:
        pairs = zip(found["one"], found["two"], strict=True)
        ratio = [getattr(one, name) / max(getattr(two, name), 1e-9) for one, two in pairs]
        return ratio if name in BETTER_WHEN_LOWER else [1 / max(r, 1e-9) for r in ratio]

    names = (*BETTER_WHEN_LOWER, "tokens_per_s")
    return {name: {"median": median(each(name)), "each_round": each(name)} for name in names}


async def run(servers: Sequence[LocalServer], port: int, args: argparse.Namespace) -> dict[str, Any]:
    one, prefill, decode = servers
    async with make_client(one.url) as a, make_client(prefill.url) as b, make_client(decode.url) as c:
        apart = Apart("two", decode, c, prefill, b, port)
        found, texts = await measure([Alone("one", one, a), apart], args)
        rate = await fetch_rate(apart, random.Random(args.seed + 1), args.input_len)
    for difference in texts.differences:
        print(difference, file=sys.stderr)
    return {
        "ratios": ratios(found),
        "rounds": {name: [dataclasses.asdict(each) for each in rounds] for name, rounds in found.items()},
        "texts": {"compared": texts.compared, "differ": len(texts.differences)},
        "fetch": rate,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument("--backend", default="tcp", help="--disaggregation-transfer-backend")
    parser.add_argument("--speculative-num-steps", default="2")
    parser.add_argument("--cpu-isa", default="auto")
    parser.add_argument(
        "--rounds", type=positive, default=5, help="rounds of each side, after one of warm-up"
    )
    parser.add_argument("--streams", type=positive, default=4, help="streams that always run")
    parser.add_argument("--prompts", type=positive, default=16, help="long prompts of each round")
    parser.add_argument("--input-len", type=positive, default=1024, help="tokens of a long prompt")
    parser.add_argument("--interval", type=float, default=0.5, help="seconds between long prompts")
    parser.add_argument(
        "--warm-up", type=float, default=1.0, help="seconds of streams before the first long prompt"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FOLDER", help="folder for the result")
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        print("this needs two cores", file=sys.stderr)
        return 2
    common = ["--model-path", args.model_path, "--cpu-isa", args.cpu_isa, "--log-level", "warning"]
    common += ["--speculative-num-steps", args.speculative_num_steps]
    mode = ["--threads", "1", "--disaggregation-transfer-backend", args.backend, "--disaggregation-mode"]
    port = free_port()
    prefills = [*common, *mode, "prefill", "--disaggregation-bootstrap-port", str(port)]
    with (
        tempfile.TemporaryDirectory() as name,
        ended_like_ctrl_c(),
        contextlib.ExitStack() as stack,
    ):
        folder = Path(name)
        servers = []
        for which, options, its in (
            ("one", [*common, "--threads", "2"], cores[:2]),
            ("prefill", prefills, cores[:1]),
            ("decode", [*common, *mode, "decode"], cores[1:2]),
        ):
            with on_cores(its):
                servers.append(stack.enter_context(LocalServer(which, options, folder / f"{which}.log")))
        with last_lines_on_error(*servers):
            for server in servers:
                server.wait_ready()
            result = asyncio.run(run(servers, port, args))
    result["ceilings"] = {"socket_bytes_per_s": socket_rate(cores[:2]), "copy_bytes_per_s": copy_rate()}
    result["load"] = {name: value for name, value in vars(args).items() if name != "output"}
    result["machine"] = dataclasses.asdict(this_machine())
    tell("disaggregation", result, args.output)
    return 1 if result["texts"]["differ"] else 0


if __name__ == "__main__":
    run_script(main)
