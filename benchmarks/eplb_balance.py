"""Measures how much time balancing saves in a layer's routed experts if a few experts get most rows.

    python benchmarks/eplb_balance.py [--shards 4,8,16] [--spare 8] [--zipf 1.0] [--output FOLDER]

The layer has DeepSeek-V2-Lite's size: 64 experts of 3 x 2048 x 1408 weights in bf16, 6 for each row. A row
chooses experts at random by Zipf's law: the k-th most popular expert has weight 1 / k ** zipf. The order of
popularity is random too (--seeds), or it is the experts' order. Placements are planned from --window rows,
and then timed on other rows.

A step waits for its slowest shard. The shards' experts are computed here one after another, each shard alone
on one core, in turns with the other placements. The median of a shard's times counts, and then the slowest
shard. Three placements are compared: the trivial one; the plan without spare places; the plan with --spare
places, rounded up to a multiple of the shards. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from depth_claims import positive, positives, run_script
from last_line import tell
from numpy.typing import NDArray

from nextn.bench.machine import this_machine
from nextn.distributed.improvement import dispatched, improved
from nextn.distributed.placement import Placement, utilisation
from nextn.ops.cpu.interface import FeedForward
from nextn.ops.cpu.library import library
from nextn.ops.cpu.weights import PackedWeight

EXPERTS, TOP_K, HIDDEN, INNER = 64, 6, 2048, 1408
ROWS = (64, 256, 1024)  # rows of a step, over all groups
DEEPSEEK_V3 = (58, 256, 288, 32)  # layers, experts, places, shards; the planning time for it is measured
TURNS = 5
PLACEMENTS = ("trivial", "planned", "planned, with spares")


class Shard:
    """The experts of one shard, on one core. All shards use the same weights: the time does not depend on
    them."""

    def __init__(self, members: int) -> None:
        self._gate_up = PackedWeight(2 * INNER, HIDDEN, members=members)
        self._down = PackedWeight(HIDDEN, INNER, members=members)
        for weight in (self._gate_up, self._down):
            weight.data[: members * weight.stride].view(torch.bfloat16).normal_(0, 0.02)
        self._pool = library().nx_pool_new(1)

    def seconds(self, ids: NDArray[np.int32], members: int) -> float:
        """Seconds to compute the experts of these rows. ids [rows, TOP_K]: indices of the shard's experts;
        negative: an expert of another shard. members: the shard's number of experts."""
        block = FeedForward(
            gate_up=self._gate_up.struct, down=self._down.struct, experts=members, top_k=TOP_K
        )
        rows = torch.randn(len(ids), HIDDEN).bfloat16()
        results = torch.empty(len(ids), TOP_K, HIDDEN)
        begin = time.perf_counter()
        library().nx_experts(
            self._pool, block, rows.data_ptr(), ids.ctypes.data, len(ids), HIDDEN, results.data_ptr()
        )
        return time.perf_counter() - begin


def chosen(rng: np.random.Generator, chances: NDArray[np.float64], rows: int) -> NDArray[np.int64]:
    """The experts of each row [rows, TOP_K], all different in a row."""
    keys = np.log(chances) + rng.gumbel(size=(rows, EXPERTS))
    found: NDArray[np.int64] = np.argsort(-keys, axis=1)[:, :TOP_K]
    return found


def slots(placement: Placement, experts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The slot of each row's experts. Replicas take turns from row to row, as with --ep-dispatch-algorithm
    dynamic."""
    turn = np.arange(len(experts))[:, None] % placement.replicas[0, experts]
    found: NDArray[np.int64] = placement.logical[0, experts, turn]
    return found


def counted(experts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rows of each expert: [1 group, 1 layer, EXPERTS]."""
    return np.bincount(experts.ravel(), minlength=EXPERTS)[None, None]


def shares(placement: Placement, experts: NDArray[np.int64], shards: int) -> list[NDArray[np.int32]]:
    """The `ids` of each shard, see `Shard.seconds`."""
    each, where = placement.slots // shards, slots(placement, experts)
    return [np.where(where // each == s, where % each, -1).astype(np.int32) for s in range(shards)]


def step_seconds(
    shard: Shard, plans: Sequence[Placement], experts: NDArray[np.int64], shards: int
) -> list[float]:
    """Seconds of the slowest shard, for each placement."""
    work = [shares(plan, experts, shards) for plan in plans]
    turns = np.array(
        [
            [
                [shard.seconds(ids, plan.slots // shards) for ids in own]
                for plan, own in zip(plans, work, strict=True)
            ]
            for _ in range(TURNS)
        ]
    )
    found: list[float] = np.median(turns, axis=0).max(axis=1).tolist()
    return found


def measured(
    shard: Shard, shards: int, spare: int, zipf: float, window: int, seed: int | None
) -> dict[str, list[dict[str, float]]]:
    """For each placement and number of rows: the highest load over the mean, and the milliseconds of the
    layer. seed: seed of the order of popularity; None: the experts' order."""
    rng = np.random.default_rng(seed or 0)
    chances = 1 / np.arange(1, EXPERTS + 1) ** zipf
    if seed is not None:
        chances = rng.permutation(chances)
    counts = counted(chosen(rng, chances, window))
    starts = [Placement.trivial(1, EXPERTS, n) for n in (0, spare)]
    plans = [starts[0], *(improved(start, counts, shards, True) for start in starts)]
    found: dict[str, list[dict[str, float]]] = {name: [] for name in PLACEMENTS}
    for rows in ROWS:
        experts = chosen(rng, chances, rows)
        seconds = step_seconds(shard, plans, experts, shards)
        for name, plan, own in zip(PLACEMENTS, plans, seconds, strict=True):
            load = 1 / float(utilisation(dispatched(counted(experts), plan, shards, True))[0])
            found[name].append(
                {
                    "rows": rows,
                    "max_over_mean": round(load, 3),
                    "ms": round(own * 1e3, 2),
                    "faster": round(seconds[0] / own, 3),
                }
            )
    return found


def planning_seconds(rng: np.random.Generator) -> float:
    layers, experts, places, shards = DEEPSEEK_V3
    counts = rng.integers(0, 1000, (1, layers, experts))
    present = Placement.trivial(layers, experts, places - experts)
    begin = time.perf_counter()
    improved(present, counts, shards, True)
    return time.perf_counter() - begin


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")
    parser.add_argument(
        "--shards", type=positives, default=[4, 8, 16], help="shards of experts (default: 4,8,16)"
    )
    parser.add_argument("--spare", type=positive, default=8, help="places for replicas (default: 8)")
    parser.add_argument("--zipf", type=float, default=1.0, help="exponent of Zipf's law (default: 1.0)")
    parser.add_argument("--window", type=positive, default=4096, help="rows to plan from (default: 4096)")
    parser.add_argument("--seeds", type=positive, default=3, help="random orders of popularity (default: 3)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spares = {shards: -(-args.spare // shards) * shards for shards in args.shards}
    shard = Shard(max((EXPERTS + spare) // shards for shards, spare in spares.items()))
    cases = []
    print(
        "| popular | shards | rows | "
        + " | ".join(f"{name}: max / mean, ms, faster" for name in PLACEMENTS)
        + " |"
    )
    print("|---" * (3 + len(PLACEMENTS)) + "|")
    for shards in args.shards:
        for order, seeds in (("by lot", list(range(args.seeds))), ("first", [None])):
            found = [measured(shard, shards, spares[shards], args.zipf, args.window, seed) for seed in seeds]
            cases.append({"shards": shards, "popular": order, "found": found})
            tell_case(order, shards, found)
    result: dict[str, Any] = {
        "spares": spares, "zipf": args.zipf, "experts": EXPERTS, "top_k": TOP_K,
        "hidden": HIDDEN, "inner": INNER, "cases": cases,
        "planning_seconds_deepseek_v3": planning_seconds(np.random.default_rng(0)),
        "machine": dataclasses.asdict(this_machine()),
    }  # fmt: skip
    tell("eplb-balance", result, args.output)
    return 0


def tell_case(order: str, shards: int, found: Sequence[dict[str, list[dict[str, float]]]]) -> None:
    """Prints a case: the medians over the seeds."""
    for i, rows in enumerate(ROWS):
        cells = []
        for name in PLACEMENTS:
            load, ms, faster = (
                median(one[name][i][key] for one in found) for key in ("max_over_mean", "ms", "faster")
            )
            cells.append(f"{load:.2f}, {ms:.1f}, {faster:.2f}")
        print(f"| {order} | {shards} | {rows} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    run_script(main)
