"""Compares steps in two halves (--enable-two-batch-overlap) with steps in one go.

    python benchmarks/synthetic_checkpoint.py --output 1b
    python benchmarks/two_batch_overlap.py --model-path 1b [--rounds 12] [--share 0.3] [--output FOLDER]
    python benchmarks/two_batch_overlap.py --verify 64,256

Two groups of one rank each, which share experts, process long prompts. With --verify, each group instead runs
so many requests with three drafts each that its steps have this number of rows. There are three ways: steps
in one go, in two halves, and as measuring decides. They take turns of a few steps, in a new random order in
every round. The result of a way is the median of its turns' times relative to their rounds. All is measured
over shared memory, and over a link that is made slow: every byte between ranks takes a time with which a rank
waits for 30 % of a step. The last line is JSON.

Claims: on prompts, halves are 1.25 times as fast if ranks wait for 30 % of the time. If measuring decides,
the speed is at least 0.98 of the better of both, with the slow link and with shared memory.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import random
import time
from functools import partial
from multiprocessing.connection import Connection
from statistics import mean, median
from typing import Any

from depth_claims import NO_COST_FILE, add_shared_options, positive, positives, run_script
from last_line import tell

from nextn.bench.machine import this_machine
from nextn.distributed.place import Place, places
from nextn.engine.build import make_executor
from nextn.engine.engine import Engine
from nextn.engine.halves import Halves
from nextn.engine.lockstep import LockstepExecutor
from nextn.engine.runner import Runner
from nextn.request import Request, SamplingParams
from nextn.server_config import ServerConfig

GROUPS, STEPS = 2, 4  # number of groups; steps of a turn
PROMPT = 512  # tokens of a prompt; a step processes as many
DRAFTS, TEXT = 3, 500  # drafts of each request with --verify; tokens of its text
WAYS = ("one go", "halves", "measured")
LEARN = 40  # steps in which measuring tries both ways


def serve(config: ServerConfig, place: Place, link: Connection) -> None:
    """The main function of a group's process. It receives (way, nanoseconds per byte, steps, rows to verify:
    0 for prompts), or None to end. It answers (seconds, seconds of waiting for rows and results, bytes,
    steps in halves)."""
    engine = Engine(config, partial(make_executor, place=place))
    executor = engine._executor
    assert isinstance(executor, LockstepExecutor)
    runner = executor._own
    assert isinstance(runner, Runner)
    assert runner.together is not None
    together, world = runner.together, runner.together.world
    first = place.group == 0
    ways: dict[str, Halves | None] = {
        "one go": None, "halves": Halves(first, always=True), "measured": Halves(first)
    }  # fmt: skip
    load = Load(engine, place.group)
    while engine.must_step():  # other groups still measure their step costs
        engine.step()
    link.send("ready")
    while (asked := link.recv()) is not None:
        way, slow, steps, rows = asked
        if slow is None:  # the link changes, so earlier measurements are dropped
            ways["measured"] = Halves(first)
            slow = 0.0
        together.halves = ways[way]
        world.slow_down(slow)
        load.begin(rows)
        in_halves = 0
        begin, before, sent = time.perf_counter(), world.waits, world.sent
        for _ in range(steps):
            load.step()
            in_halves += world.in_halves
        seconds, waits = time.perf_counter() - begin, world.waits.since(before)
        link.send((seconds, waits.dispatch + waits.combine, world.sent - sent, in_halves))


class Load:
    """Keeps an engine's steps at a number of rows. When a request ends, the next one begins."""

    def __init__(self, engine: Engine, seed: int) -> None:
        self._engine, self._random = engine, random.Random(seed)
        self._rids: set[str] = set()
        self._made = self._rows = 0

    def begin(self, rows: int) -> None:
        """rows: of drafts and their roots; 0: of prompts."""
        if rows == self._rows:
            return
        self._rows = rows
        for rid in self._rids:
            self._engine.abort(rid)
        self._rids.clear()
        for _ in range(2):  # the prompts, and the first drafts
            self.step()

    def step(self) -> None:
        wanted = self._rows // (1 + DRAFTS) or 1
        while len(self._rids) < wanted:
            if self._rows:
                self._add(4, SamplingParams(max_tokens=TEXT, ignore_eos=True))
            else:
                self._add(PROMPT, SamplingParams(max_tokens=1))
        self._rids -= {out.rid for out in self._engine.step() if out.finish_reason is not None}

    def _add(self, length: int, params: SamplingParams) -> None:
        tokens = [self._random.randrange(self._engine.vocab_size) for _ in range(length)]
        self._made += 1
        self._engine.add(Request(str(self._made), tokens, params))
        self._rids.add(str(self._made))


Asked = tuple[str, float | None, int, int]


def turn(links: list[Connection], asked: Asked) -> list[Any]:
    for link in links:
        link.send(asked)
    return [link.recv() for link in links]


def waiting(links: list[Connection], slow: float, rows: int) -> float:
    """Share of time that ranks wait, with steps in one go over this link."""
    found = turn(links, ("one go", slow, 3 * STEPS, rows))
    return mean(waited / took for took, waited, *_ in found)


def slow_link(links: list[Connection], share: float, rows: int) -> float:
    """The nanoseconds per byte with which ranks wait for this share of the time."""
    took, _, sent, _ = turn(links, ("one go", 0.0, 3 * STEPS, rows))[0]
    slow = 1e9 * took * share / (1 - share) / sent
    for _ in range(4):  # corrects for the waiting that is not due to bytes
        found = waiting(links, slow, rows)
        slow *= share / (1 - share) / (found / (1 - found))
    return slow


def measure(links: list[Connection], slow: float, rounds: int, rows: int) -> tuple[dict[str, float], float]:
    """For each way, the median of its turns' times relative to their rounds. And if measuring decides, the
    share of steps in halves."""
    turn(links, ("measured", None, 1, rows))
    turn(links, ("measured", slow, LEARN, rows))
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    halves = 0
    for _ in range(rounds):
        turns = {way: turn(links, (way, slow, STEPS, rows)) for way in random.sample(WAYS, len(WAYS))}
        halves += turns["measured"][0][3]
        found = {way: max(seconds for seconds, *_ in each) for way, each in turns.items()}
        usual = mean(found.values())
        for way, each in found.items():
            took[way].append(each / usual)
    return {way: median(each) for way, each in took.items()}, halves / (rounds * STEPS)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--rounds", type=positive, default=12, help="turns of each way (default: 12)")
    parser.add_argument(
        "--share", type=float, default=0.3, help="share of time that ranks wait (default: 0.3)"
    )
    parser.add_argument("--verify", type=positives, default=[0], help="rows of each group's step")
    parser.add_argument("--ns-per-byte", type=float, help="of the slow link (default: from --share)")
    parser.add_argument("--links", default="slow,memory", help="which of both (default: %(default)s)")
    args = parser.parse_args()
    config = ServerConfig(
        model_path=args.model_path, threads=1, tp_size=GROUPS, dp_size=GROUPS, enable_dp_attention=True,
        ep_size=GROUPS, enable_two_batch_overlap=True, speculative_num_steps=DRAFTS, disable_radix_cache=True,
        kv_cache_tokens=40960, **NO_COST_FILE,
    )  # fmt: skip
    spawn = multiprocessing.get_context("spawn")
    links = []
    with places(GROUPS) as made:
        for place in made:
            ours, theirs = spawn.Pipe()
            spawn.Process(target=serve, args=(config.of_replica(), place, theirs), daemon=True).start()
            links.append(ours)
        assert [link.recv() for link in links] == ["ready"] * GROUPS
    found = []
    print("| rows | link | waiting in one go | halves | measured | of these in halves |")
    print("|--:|---|--:|--:|--:|--:|")
    for verify in args.verify:
        for name in args.links.split(","):
            slow = 0.0
            if name == "slow":
                slow = args.ns_per_byte or slow_link(links, args.share, verify)
            share = waiting(links, slow, verify)
            took, in_halves = measure(links, slow, args.rounds, verify)
            halves, measured = (took["one go"] / took[way] for way in WAYS[1:])
            found.append(
                {
                    "verify": verify, "link": name, "ns_per_byte": slow, "waiting": share, "halves": halves,
                    "measured": measured, "in_halves": in_halves,
                }
            )  # fmt: skip
            rows = f"{verify} to verify" if verify else f"{PROMPT} of a prompt"
            cells = f"{share:.1%} | {halves:.2f} x | {measured:.2f} x | {in_halves:.0%}"
            print(f"| {rows} | {name} | {cells} |", flush=True)
    for link in links:
        link.send(None)
    result = {
        "links": found, "model": args.model_path, "rounds": args.rounds, "prompt": PROMPT,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    rows_of = "".join(f"-verify-{verify}" for verify in args.verify if verify)
    tell(f"two-batch-overlap{rows_of}", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
