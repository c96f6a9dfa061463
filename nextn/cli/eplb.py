"""nextn eplb: plans from recorded counts which rank computes which expert.

nextn eplb counts.json --ep-size 4 --ep-num-redundant-experts 4 --output experts.json --plot experts.png
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from nextn.cli.errors import CommandError

if TYPE_CHECKING:
    from nextn.distributed.placement import Counts, Loads, Placement

HELP = "plan a placement of experts on ranks from recorded counts, for --init-expert-location"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dump", type=Path, help="JSON file with the rows that each expert had: `logical_count`"
    )
    parser.add_argument("--ep-size", "--ep", type=int, required=True, help="shards of experts")
    parser.add_argument(
        "--ep-num-redundant-experts", type=int, default=0, help="spare replicas in each layer (default: 0)"
    )
    parser.add_argument("--nnodes", type=int, default=1, help="machines (default: 1)")
    parser.add_argument(
        "--groups", type=int, default=1,
        help="number of the router's groups of experts (`n_group`); if it is a multiple of --nnodes, each "
        "group stays on one machine (default: 1)",
    )  # fmt: skip
    parser.add_argument("--output", type=Path, help="JSON file to write the placement to")
    parser.add_argument("--plot", type=Path, help="PNG file to draw the shards' loads in, before and after")


def run(args: argparse.Namespace) -> int:
    from nextn.distributed.eplb import balanced
    from nextn.distributed.placement import Placement, shard_loads
    from nextn.distributed.placement_file import read_dump, write_placement
    from nextn.whole_file import write_whole

    if args.ep_num_redundant_experts < 0 or args.ep_size < 1 or args.nnodes < 1 or args.groups < 1:
        raise CommandError(
            "--ep-num-redundant-experts is 0 or more; --ep-size, --nnodes and --groups are 1 or more"
        )
    try:
        dump = read_dump(args.dump)
        layers, experts = dump.target.shape
        before = Placement.trivial(layers, experts, args.ep_num_redundant_experts)
        after = balanced(dump.target, before.slots, args.ep_size, args.nnodes, args.groups)
    except ValueError as e:
        raise CommandError(str(e)) from e
    loads = [shard_loads(dump.target, placement, args.ep_size) for placement in (before, after)]
    try:
        if args.plot is not None:
            from nextn.bench.expert_plot import shard_load_maps

            maps = dict(zip(("before", "after"), map(over_mean, loads), strict=True))
            write_whole(args.plot, shard_load_maps(title(after, args.ep_size), maps))
        if args.output is not None:
            write_placement(args.output, after)
    except OSError as e:
        raise CommandError(f"cannot write {e.filename}: {e.strerror}") from e
    print("\n".join(report(dump.target, after, *loads)))
    if dump.nextn is not None:
        print("\n".join(nextn_report(dump.nextn)))
    for path in filter(None, (args.output, args.plot)):
        print(f"written: {path}")
    return 0


def title(placement: Placement, shards: int) -> str:
    spare = placement.slots - placement.experts
    return f"{placement.experts} experts and {spare} spare replicas on {shards} shards"


def over_mean(loads: Loads) -> Loads:
    """Each load over its layer's mean; 1 for a layer without load."""
    import numpy as np

    mean = loads.mean(axis=1, keepdims=True)
    found: Loads = np.divide(loads, mean, out=np.ones_like(loads), where=mean > 0)
    return found


def report(counts: Counts, placement: Placement, before: Loads, after: Loads) -> Iterator[str]:
    """Yields a line for each layer, and one for all layers. The highest load counts, because a step waits for
    the fullest shard of each layer."""
    yield f"{title(placement, before.shape[1])}; highest load of a shard over the mean:"
    yield ""
    yield "layer         rows  trivial  planned  most replicas"
    ratios = [over_mean(loads).max(axis=1) for loads in (before, after)]
    for layer, (was, found) in enumerate(zip(*ratios, strict=True)):
        replicas = placement.replicas[layer]
        most = f"{replicas.max()} of expert {replicas.argmax()}" if replicas.max() > 1 else "1"
        yield f"{layer:5} {counts[layer].sum():12,} {was:8.2f} {found:8.2f}  {most}"
    mean = before.mean(axis=1).sum() or 1.0
    was, found = (loads.max(axis=1).sum() / mean if counts.any() else 1.0 for loads in (before, after))
    yield f"  all {counts.sum():12,} {was:8.2f} {found:8.2f}"
    yield ""


def nextn_report(counts: Counts) -> Iterator[str]:
    """Yields lines about the drafter's experts. They are not placed: every group has all of them."""
    yield "NextN layers, whose experts are not placed (each attention group has all of them):"
    for layer, row in enumerate(counts):
        busiest = row.max() / row.mean() if row.any() else 1.0
        yield f"{layer:5} {row.sum():12,} rows, expert {row.argmax()} has {busiest:.2f} times the mean"
    yield ""
