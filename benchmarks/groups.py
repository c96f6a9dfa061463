"""Compares attention groups of one rank each, which share experts, with one process with as many threads.

    python benchmarks/synthetic_checkpoint.py --output 1b
    python benchmarks/groups.py --model-path 1b [--concurrency 8,32] [--rounds 16] [--groups 2] [--ep-size 2]
                                [--cpu-isa avx2] [--output FOLDER]

By default there are two groups: --tp-size 2 --dp-size 2 --enable-dp-attention --ep-size 2. Each group has its
own requests. Both sides always run as many requests as the load has, without drafts and with two; when one
ends, the next begins. A turn is some steps. In a round every side has one turn, in a new random order. Speed
is tokens per step over all rounds, divided by the median of a turn's time relative to its round. The share of
time that ranks wait is measured too, by phase (steps with rows of a prompt, and other steps) and by what they
wait for: the beginning of a step, rows for their experts, results. The last line is JSON.

Claim: 0.9 times the speed of one process at 32 requests.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import random
import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import mean, median
from typing import NamedTuple

from depth_claims import NO_COST_FILE, add_shared_options, positive, positives, run_script
from last_line import tell
from side import Side, Turn, load_prompts

from nextn.bench.machine import this_machine
from nextn.config import CPU_LEVELS
from nextn.distributed.place import Place, places
from nextn.engine.build import make_executor
from nextn.server_config import ServerConfig
from nextn.waits import REASONS, Phase

DRAFTS = (0, 2)
STEPS = 12  # steps of a turn


class Found(NamedTuple):
    """The results of one engine in one turn. phases: times of its steps, by phase."""

    turn: Turn
    phases: dict[str, Phase]


def serve(config: ServerConfig, place: Place | None, drafts: int, link: Connection) -> None:
    """The main function of an engine's process. It receives loads (requests, seed), numbers of steps, or None
    to end. For each number of steps it sends a `Found`."""
    prompts = load_prompts(config.model_path)
    side = Side(config, drafts, prompts, make_executor=partial(make_executor, place=place))
    while side.engine.must_step():  # other groups still measure their step costs
        side.engine.step()
    link.send("ready")
    while (asked := link.recv()) is not None:
        if isinstance(asked, tuple):
            side.load(*asked)
            continue
        before = dict(side.engine.stats().phases)
        turn = side.turn(0.0, asked)
        link.send(Found(turn, since(before, side.engine.stats().phases)))


def since(before: dict[str, Phase], now: dict[str, Phase]) -> dict[str, Phase]:
    found = {}
    for name, phase in now.items():
        then = before.get(name, Phase())
        found[name] = Phase(phase.steps - then.steps, phase.waits.since(then.waits))
    return found


class Engines:
    """One side: one engine, or several groups. Each engine is a process."""

    def __init__(self, name: str, config: ServerConfig, drafts: int) -> None:
        self.name, self.links = name, []
        spawn = multiprocessing.get_context("spawn")
        with places(config.attention_dp) as made:
            for place in made:
                ours, theirs = spawn.Pipe()
                given = place if config.attention_dp > 1 else None
                args = (config.of_replica(), given, drafts, theirs)
                spawn.Process(target=serve, args=args, daemon=True).start()
                self.links.append(ours)
            for link in self.links:
                assert link.recv() == "ready"

    def load(self, requests: int) -> None:
        for i, link in enumerate(self.links):
            link.send((requests // len(self.links), 100 * requests + i))

    def turn(self) -> list[Found]:
        for link in self.links:
            link.send(STEPS)
        return [link.recv() for link in self.links]


Shares = dict[str, dict[str, float]]  # of time, by phase and reason


def measure(sides: Sequence[Engines], requests: int, rounds: int) -> dict[str, tuple[float, Shares]]:
    """For each side: (speed in a unit common to all sides, share of time that ranks wait). The first quarter
    of the rounds is warm-up."""
    for side in sides:
        side.load(requests)
    took: dict[str, list[float]] = {side.name: [] for side in sides}
    tokens = {side.name: 0.0 for side in sides}
    phases: dict[str, dict[str, Phase]] = {side.name: {} for side in sides}
    for at in range(rounds):
        turns = {side.name: side.turn() for side in random.sample(sides, len(sides))}
        if at < rounds // 4:
            continue
        each = {name: max(found.turn.seconds for found in turn) for name, turn in turns.items()}
        for name, turn in turns.items():
            took[name].append(each[name] / mean(each.values()))
            tokens[name] += sum(found.turn.tokens for found in turn)
            for phase, times in (item for found in turn for item in found.phases.items()):
                phases[name][phase] = phases[name].get(phase, Phase()).plus(times)
    return {name: (tokens[name] / median(took[name]), shares(phases[name])) for name in took}


def shares(phases: dict[str, Phase]) -> Shares:
    """`all` is the sum of all reasons and, among the phases, the mean of all steps."""
    if not phases:
        return {}
    whole = Phase()
    for phase in phases.values():
        whole = whole.plus(phase)
    found: Shares = {}
    for name, phase in {**phases, "all": whole}.items():
        if phase.steps:
            by_reason = zip(REASONS, phase.waits.by_reason, strict=True)
            found[name] = {reason: seconds / phase.steps for reason, seconds in by_reason}
            found[name]["all"] = phase.waits.total / phase.steps
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--cpu-isa", default="auto", choices=("auto", *CPU_LEVELS), help="CPU level")
    parser.add_argument("--concurrency", type=positives, default="8,32", help="requests at once")
    parser.add_argument("--rounds", type=positive, default=16, help="turns of each side (default: 16)")
    parser.add_argument("--groups", type=positive, default=2, help="groups, and threads of the other side")
    parser.add_argument(
        "--ep-size", type=positive, help="shards of the experts (default: one for each group)"
    )
    args = parser.parse_args()
    groups: int = args.groups
    config = ServerConfig(model_path=args.model_path, cpu_isa=args.cpu_isa, threads=groups, **NO_COST_FILE)
    shared = dataclasses.replace(
        config, tp_size=groups, dp_size=groups, enable_dp_attention=True, ep_size=args.ep_size or groups,
        threads=1,
    )  # fmt: skip
    rows = []
    print(f"| requests | drafts | {groups} groups over one process | waiting | in prefill | in decode |")
    print("|--:|--:|--:|--:|--:|--:|")
    for drafts in DRAFTS:
        sides = [Engines("one", config, drafts), Engines("groups", shared, drafts)]
        for requests in args.concurrency:
            found = measure(sides, requests, args.rounds)
            ratio, waiting = found["groups"][0] / found["one"][0], found["groups"][1]
            rows.append(
                {"requests": requests, "drafts": drafts, "over_one_process": ratio, "waiting": waiting}
            )
            parts = (waiting.get(name, {}).get("all", 0.0) for name in ("all", "prefill", "decode"))
            row = " | ".join(f"{part:.1%}" for part in parts)
            print(f"| {requests} | {drafts} | {ratio:.3f} | {row} |", flush=True)
        for side in sides:
            for link in side.links:
                link.send(None)
    result = {
        "loads": rows, "model": args.model_path, "groups": groups, "ep_size": shared.ep_size,
        "rounds": args.rounds, "cpu_isa": args.cpu_isa, "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("groups", result, args.output)
    return 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    run_script(main)
