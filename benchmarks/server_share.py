"""Measures the server's cost: the ratio of tokens/s through server and client to tokens/s of the engine.

python benchmarks/server_share.py                                    # 16 requests, without MTP: a minute
python benchmarks/server_share.py --server-options "--speculative-num-steps 2" --rounds 9
python benchmarks/server_share.py --tree before=../before after=. --requests 1 16   # two trees in turns

The same load runs in turns on an engine in a separate process and on a server: greedy requests with code
prompts, the same number at once. Other results are CPU microseconds per token: of the engine alone, and of
the server's engine process, its HTTP process and the client (the one of `nextn bench`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import uvloop
from front_end import cpu_seconds, named_tree
from last_line import tell

from nextn.bench.client import run_load
from nextn.bench.local_server import LocalServer
from nextn.bench.machine import slug, this_machine
from nextn.bench.prompts import heldout_prompts
from nextn.cli.options import add_options, parse
from nextn.cli.parser import Parser
from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.engine.engine import Engine
from nextn.request import Request, SamplingParams
from nextn.tokenizer.tokenizer import Tokenizer


def alone(engine: Engine, prompts: Sequence[list[int]], tokens: int, at_once: int) -> float:
    """Runs the load on the engine and returns the seconds."""
    waiting, running = list(reversed(prompts)), 0
    begin = time.perf_counter()
    while waiting or running:
        while waiting and running < at_once:
            params = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True)
            engine.add(Request(str(len(waiting)), list(waiting.pop()), params))
            running += 1
        running -= sum(out.finish_reason is not None for out in engine.step())
    seconds = time.perf_counter() - begin
    engine.flush_cache()
    return seconds


def engine_of(server: int) -> int:
    """The pid of the server's engine process."""
    for task in Path(f"/proc/{server}/task").glob("*/children"):
        for child in task.read_text().split():
            if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise SystemExit("the server has no engine")


def run_engine(options: list[str], load: dict[str, Any]) -> Iterator[Any]:
    """For each number of requests at once on stdin, runs the load on an engine and yields (seconds, CPU
    seconds)."""
    parser = Parser()
    add_options(parser, EngineConfig)
    engine = Engine(parse(parser.parse_args(options), EngineConfig))
    for line in sys.stdin:
        before = cpu_seconds(os.getpid())[0]
        seconds = alone(engine, load["prompts"], load["tokens"], int(line))
        yield seconds, cpu_seconds(os.getpid())[0] - before


def run_client(url: str, load: dict[str, Any]) -> Iterator[Any]:
    """Like `run_engine`, with a client of the server at `url`."""
    common = {"max_tokens": load["tokens"], "temperature": 0, "ignore_eos": True}
    bodies = [{"prompt": prompt, **common} for prompt in load["prompts"]]
    for line in sys.stdin:
        httpx.post(f"{url}/flush_cache").raise_for_status()
        before = cpu_seconds(os.getpid())[0]
        loaded = uvloop.run(run_load(url, bodies, int(line)))
        yield loaded.seconds, cpu_seconds(os.getpid())[0] - before


class Worker:
    """A process with the source tree `tree` that runs the load on request. what: "engine" or "client"."""

    def __init__(self, tree: Path, what: str, arguments: Sequence[Any]) -> None:
        command = [sys.executable, __file__, what, json.dumps(arguments)]
        environment = os.environ | {"PYTHONPATH": str(tree.resolve())}
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
        )

    def run(self, at_once: int) -> tuple[float, float]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{at_once}\n")
        self.process.stdin.flush()
        seconds, cpu = json.loads(self.process.stdout.readline())
        return seconds, cpu

    def close(self) -> None:
        self.process.communicate()


class Side:
    """One source tree: its engine alone, and its server and client."""

    def __init__(self, tree: Path, options: list[str], load: dict[str, Any], log: Path) -> None:
        self.tokens = len(load["prompts"]) * load["tokens"]
        self.engine = Worker(tree, "engine", [options, load])
        self.server = LocalServer("under test", [*options, "--log-level", "warning"], log, tree)
        self.server.wait_ready()
        self.client = Worker(tree, "client", [self.server.url, load])
        self.pids = engine_of(self.server.pid), self.server.pid

    def close(self) -> None:
        self.engine.close()
        self.client.close()
        self.server.stop()

    def round(self, at_once: int) -> dict[str, float]:
        seconds, cpu = self.engine.run(at_once)
        before = [cpu_seconds(pid)[0] for pid in self.pids]
        through, client = self.client.run(at_once)
        its, http = (cpu_seconds(pid)[0] - b for pid, b in zip(self.pids, before, strict=True))
        micro = 1e6 / self.tokens
        return {
            "engine_tokens_per_second": self.tokens / seconds,
            "server_tokens_per_second": self.tokens / through,
            "ratio": seconds / through,
            "alone_us": cpu * micro,
            "engine_us": its * micro,
            "http_us": http * micro,
            "client_us": client * micro,
            "cpu_ratio": cpu / (its + http + client),
        }


def summed(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: float(f"{median(each[name] for each in rounds):.4g}") for name in rounds[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=re.split(r"\n\n", __doc__ or "")[0])
    parser.add_argument("--model-path", default=EMBEDDED)
    parser.add_argument(
        "--tree",
        nargs="+",
        type=named_tree,
        default=[("", Path(__file__).parents[1])],
        help="trees, NAME=PATH",
    )
    parser.add_argument("--requests", nargs="+", type=int, default=[16], help="concurrent requests")
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=128, help="tokens of each answer (default: 128)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--server-options", default="--speculative-num-steps 0", help="also for the engine")
    parser.add_argument("--output-dir", type=Path, help="folder for the result")
    args = parser.parse_args()
    tokenizer = Tokenizer.from_folder(model_folder(args.model_path))
    prompts = [tokenizer.encode(text) for text in heldout_prompts(args.prompts)]
    load = {"prompts": prompts, "tokens": args.tokens}
    options = ["--model-path", args.model_path, *shlex.split(args.server_options)]
    found: dict[str, Any] = {name: {} for name, _ in args.tree}
    with tempfile.TemporaryDirectory() as folder:
        sides = {name: Side(path, options, load, Path(folder) / f"{name}.log") for name, path in args.tree}
        for at_once in args.requests:
            rounds: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
            for i in range(args.rounds + 1):
                for name, side in sides.items():
                    measured = side.round(at_once)
                    if i:  # round 0 is warm-up
                        rounds[name].append(measured)
            for name, each in rounds.items():
                found[name][str(at_once)] = summed(each)
                print(f"{name}, {at_once} requests: {summed(each)}", file=sys.stderr, flush=True)
        for side in sides.values():
            side.close()
    result = {"options": args.server_options, "tokens": args.tokens, "prompts": args.prompts}
    result |= {"machine": dataclasses.asdict(this_machine()), "rounds": args.rounds}
    result["requests"] = found if len(found) > 1 else next(iter(found.values()))
    tell(f"server-share-{slug(args.server_options)}", result, args.output_dir)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] not in (["engine"], ["client"]):
        sys.exit(main())
    work: Callable[..., Iterator[Any]] = run_engine if sys.argv[1] == "engine" else run_client
    for measured in work(*json.loads(sys.argv[2])):
        print(json.dumps(measured), flush=True)
