"""Compares steps in two halves (--enable-two-batch-overlap) with steps in one go, on prompts.

    python benchmarks/synthetic_checkpoint.py --output 1b
    python benchmarks/two_batch_overlap.py --model-path 1b [--rounds 12] [--share 0.3] [--output FOLDER]

Two groups of one rank each, which share experts, process long prompts. There are three ways: steps in one go,
in two halves, and as measuring decides. They take turns of a few steps, in a new random order in every round.
The result of a way is the median of its turns' times relative to their rounds. All is measured over shared
memory, and over a link that is made slow: every byte between ranks takes a time with which a rank waits for
30 % of a step. The last line is JSON.

Claims: halves are 1.25 times as fast if ranks wait for 30 % of the time. If measuring decides, the speed is
at least 0.98 of the better of both, with the slow link and with shared memory.
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

from depth_claims import NO_COST_FILE, add_shared_options, positive, run_script
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

GROUPS, STEPS = 2, 3  # number of groups; steps of a turn
PROMPT = 512  # tokens of a prompt; a step processes as many
WAYS = ("one go", "halves", "measured")
LEARN = 140  # steps in which measuring tries both ways


def serve(config: ServerConfig, place: Place, link: Connection) -> None:
    """The main function of a group's process. It receives (way, nanoseconds per byte, steps), or None to end.
    It answers (seconds, seconds of waiting, bytes)."""
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
    rng = random.Random(place.group)
    made = 0
    while engine.must_step():  # other groups still measure their step costs
        engine.step()
    link.send("ready")
    while (asked := link.recv()) is not None:
        way, slow, steps = asked
        if slow is None:  # the link changes, so earlier measurements are dropped
            ways["measured"] = Halves(first)
            slow = 0.0
        together.halves = ways[way]
        world.slow_down(slow)
        begin, waited, sent = time.perf_counter(), world.waited, world.sent
        for _ in range(steps):
            if not engine.has_work():
                tokens = [rng.randrange(engine.vocab_size) for _ in range(PROMPT)]
                engine.add(Request(str(made), tokens, SamplingParams(max_tokens=1)))
                made += 1
            engine.step()
        link.send((time.perf_counter() - begin, world.waited - waited, world.sent - sent))


Asked = tuple[str, float | None, int]


def turn(links: list[Connection], asked: Asked) -> list[Any]:
    for link in links:
        link.send(asked)
    return [link.recv() for link in links]


def seconds(links: list[Connection], asked: Asked) -> float:
    return max(found[0] for found in turn(links, asked))


def waiting(links: list[Connection], slow: float) -> float:
    """Share of time that ranks wait, with steps in one go over this link."""
    found = turn(links, ("one go", slow, 4 * STEPS))
    return mean(waited / took for took, waited, _ in found)


def slow_link(links: list[Connection], share: float) -> float:
    """The nanoseconds per byte with which ranks wait for this share of the time."""
    took, _, sent = turn(links, ("one go", 0.0, 4 * STEPS))[0]
    slow = 1e9 * took * share / (1 - share) / sent
    for _ in range(4):  # corrects for the waiting that is not due to bytes
        found = waiting(links, slow)
        slow *= share / (1 - share) / (found / (1 - found))
    return slow


def measure(links: list[Connection], slow: float, rounds: int) -> dict[str, float]:
    """For each way, the median of its turns' times relative to their rounds."""
    turn(links, ("measured", None, 1))
    turn(links, ("measured", slow, LEARN))
    took: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        found = {way: seconds(links, (way, slow, STEPS)) for way in random.sample(WAYS, len(WAYS))}
        usual = mean(found.values())
        for way, each in found.items():
            took[way].append(each / usual)
    return {way: median(each) for way, each in took.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add_shared_options(parser)
    parser.add_argument("--rounds", type=positive, default=12, help="turns of each way (default: 12)")
    parser.add_argument(
        "--share", type=float, default=0.3, help="share of time that ranks wait (default: 0.3)"
    )
    args = parser.parse_args()
    config = ServerConfig(
        model_path=args.model_path, threads=1, tp_size=GROUPS, dp_size=GROUPS, enable_dp_attention=True,
        ep_size=GROUPS, enable_two_batch_overlap=True, speculative_num_steps=0, disable_radix_cache=True,
        **NO_COST_FILE,
    )  # fmt: skip
    spawn = multiprocessing.get_context("spawn")
    links = []
    with places(GROUPS) as made:
        for place in made:
            ours, theirs = spawn.Pipe()
            spawn.Process(target=serve, args=(config.of_replica(), place, theirs), daemon=True).start()
            links.append(ours)
        assert [link.recv() for link in links] == ["ready"] * GROUPS
    rows = []
    print("| link | waiting in one go | halves | measured |\n|---|--:|--:|--:|")
    for name, slow in (("slow", slow_link(links, args.share)), ("shared memory", 0.0)):
        share = waiting(links, slow)
        took = measure(links, slow, args.rounds)
        halves, measured = (took["one go"] / took[way] for way in WAYS[1:])
        rows.append(
            {"link": name, "ns_per_byte": slow, "waiting": share, "halves": halves, "measured": measured}
        )
        print(f"| {name} | {share:.1%} | {halves:.2f} x | {measured:.2f} x |", flush=True)
    for link in links:
        link.send(None)
    result = {
        "links": rows, "model": args.model_path, "rounds": args.rounds, "prompt": PROMPT,
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("two-batch-overlap", result, args.output)
    return 0


if __name__ == "__main__":
    run_script(main)
