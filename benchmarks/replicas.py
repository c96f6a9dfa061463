"""Compares ways to choose a request's replica: --load-balance-method prefix and round_robin.

    python benchmarks/replicas.py [--replicas 2] [--rounds 6] [--output FOLDER]
    python benchmarks/replicas.py --groups 4 --prompts-per-group 3 --rounds 2 --system-tokens 96

Two servers, one for each method, take turns with the same load: groups of prompts with a common beginning, of
random ids, in random order. Every round has new prompts and begins with empty caches. The first round is
warm-up. Both servers have the same fixed draft depth, because automatic depth depends on a server's
measurements at its start. The second server in a round can be faster, so the order alternates, and a ratio is
the geometric mean of two rounds. Ratios are prefix over round_robin, medians over these pairs of rounds. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import dataclasses
import shlex
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import httpx
from depth_claims import add_shared_options, positive, run_script
from last_line import tell

from nextn.bench.apis import completion_body
from nextn.bench.client import get_text, run_load
from nextn.bench.datasets import Options, load_samples
from nextn.bench.local_server import LocalServer, ended_like_ctrl_c
from nextn.bench.machine import this_machine
from nextn.config import model_folder
from nextn.terminal.scrape import Scrape
from nextn.tokenizer import Tokenizer

METHODS = ("prefix", "round_robin")


class Round(NamedTuple):
    """The results of one load on one server."""

    hit_rate: float  # prompt tokens found in the cache / prompt tokens
    tokens_per_s: float  # generated tokens
    ttft: float  # median, in seconds
    shares: list[float]  # share of the prompt tokens, by replica


async def run_round(server: LocalServer, bodies: Sequence[dict[str, Any]], concurrency: int) -> Round:
    async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
        (await client.post("/flush_cache")).raise_for_status()
    before = await get_text(server.url, "/metrics")
    load = await run_load(server.url, bodies, concurrency)
    after = await get_text(server.url, "/metrics")
    grown = Scrape.read(after, 1.0).since(Scrape.read(before, 0.0))
    assert grown is not None, "the server was restarted"
    prompts = [b - a for a, b in zip(prompt_tokens(before), prompt_tokens(after), strict=True)]
    return Round(
        grown.ratio("cached_tokens_total", "prompt_tokens_total"),
        sum(reply.completion_tokens for reply in load.replies) / load.seconds,
        median(reply.ttft for reply in load.replies),
        [tokens / sum(prompts) for tokens in prompts],
    )


def prompt_tokens(metrics: str) -> list[float]:
    """Number of prompt tokens of each replica."""
    lines = [line for line in metrics.splitlines() if line.startswith("nextn:prompt_tokens_total")]
    return [float(line.rpartition(" ")[2]) for line in lines]


def ratio(rounds: Sequence[dict[str, Round]], name: str) -> dict[str, Any]:
    """Ratios of prefix over round_robin: of each round, and the median over pairs of rounds."""
    each = [
        max(getattr(r["prefix"], name), 1e-9) / max(getattr(r["round_robin"], name), 1e-9) for r in rounds
    ]
    pairs = [geometric_mean(each[at : at + 2]) for at in range(0, len(each), 2)]
    return {"median": median(pairs), "each_round": each}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    for name, default, what in (
        ("--replicas", 2, "replicas of each server"),
        ("--groups", 16, "groups of prompts with the same beginning"),
        ("--prompts-per-group", 6, "prompts of each group"),
        ("--system-tokens", 384, "tokens that a group shares"),
        ("--question-tokens", 32, "further tokens of each prompt"),
        ("--output-tokens", 32, "tokens of each text"),
        ("--concurrency", 16, "requests in flight"),
        ("--kv-cache-tokens", 6144, "slots of each replica: room for some of the groups"),
        ("--rounds", 6, "rounds of each server; an even number"),
        ("--num-steps", 2, "drafts per step"),
    ):
        parser.add_argument(
            name, type=positive, default=default, help=f"{what} (default: %(default)s)".strip()
        )
    parser.add_argument("--server-options", default="", help="options of nextn serve, as one word")
    args = parser.parse_args()
    if args.rounds % 2:
        parser.error(f"--rounds {args.rounds}: it must be even, as each server is the first in every other")
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    options = [
        "--model-path", args.model_path, "--dp-size", str(args.replicas), "--kv-cache-tokens",
        str(args.kv_cache_tokens), "--speculative-num-steps", str(args.num_steps), "--log-level", "warning",
        *shlex.split(args.server_options),
    ]  # fmt: skip
    rounds: list[dict[str, Round]] = []
    with ended_like_ctrl_c(), contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nextn-replicas-")))
        servers: dict[str, LocalServer] = {}
        for method in METHODS:  # one after the other, because engines measure step costs at their start
            how = [*options, "--load-balance-method", method]
            servers[method] = stack.enter_context(LocalServer(method, how, folder / f"{method}.log"))
            servers[method].wait_ready()
        for seed in range(1 + args.rounds):
            data = Options(
                "generated-shared-prefix", gsp_num_groups=args.groups, seed=seed,
                gsp_prompts_per_group=args.prompts_per_group, gsp_system_prompt_len=args.system_tokens,
                gsp_question_len=args.question_tokens, gsp_output_len=args.output_tokens,
            )  # fmt: skip
            model = servers["prefix"].model
            bodies = [
                completion_body(model, s.prompt, s.output_len, True) for s in load_samples(data, tokenizer)
            ]
            order = METHODS if seed % 2 == 0 else METHODS[::-1]
            done = {m: asyncio.run(run_round(servers[m], bodies, args.concurrency)) for m in order}
            if seed == 0:  # warm-up
                continue
            rounds.append(done)
            print(
                *(f"{m}: {done[m].hit_rate:.2f} hits, {done[m].tokens_per_s:.0f} tok/s" for m in METHODS),
                sep="; ",
            )
    print("| method | hit rate | tok/s | TTFT, ms | busiest replica's share |\n|---|--:|--:|--:|--:|")
    for method in METHODS:
        own = [r[method] for r in rounds]
        print(
            f"| {method} | {median(r.hit_rate for r in own):.2f} | {median(r.tokens_per_s for r in own):.0f} "
            f"| {median(r.ttft for r in own) * 1e3:.1f} | {median(max(r.shares) for r in own):.2f} |"
        )
    settings = {name: value for name, value in vars(args).items() if name != "output"}
    ratios = {name: ratio(rounds, name) for name in ("hit_rate", "tokens_per_s", "ttft")}
    result = {
        "prefix_over_round_robin": ratios,
        "rounds": [{method: r[method]._asdict() for method in METHODS} for r in rounds],
        "settings": settings, "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("replicas", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
