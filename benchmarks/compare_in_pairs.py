"""Runs `nextn bench compare` of automatic and fixed depths for several loads at once, on two cores each.

    python benchmarks/compare_in_pairs.py [--concurrency 1,4,16,64] [--rounds 14] [--output FOLDER]

For a machine with many cores. Each load has its own servers and client on two cores, as on a machine with two
cores, so that all loads take as long as one. "of the best" compares with the fastest fixed depth at that
load. The last line is JSON. Logs and tables of every load are under --work.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from last_line import tell

CORES = 2
NONE, AUTO = "MTP off", "auto"


def start(concurrency: int, cores: set[int], rounds: int, folder: Path) -> subprocess.Popen[str]:
    command = [
        "bench",
        "compare",
        "--num-steps",
        "0,1,2,3,4",
        "--side",
        f"{AUTO}=--speculative-num-steps auto",
    ]
    command += ["--concurrency", str(concurrency), "--rounds", str(rounds), "--disable-tqdm"]
    with (folder / "log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "nextn", *command, "--output-dir", str(folder)],
            stdout=subprocess.PIPE, stderr=log, text=True,
            preexec_fn=functools.partial(os.sched_setaffinity, 0, cores),
        )  # fmt: skip


def load_of(record: dict[str, Any]) -> dict[str, Any]:
    """A row of the table. record: the last line of `nextn bench compare`."""
    (point,) = record["scenarios"][0]["points"]
    sides = point["sides"]
    best = max(side["ratio"] for name, side in sides.items() if name != AUTO)
    return {
        "requests": point["concurrency"],
        "over_none": {name: side["ratio"] for name, side in sides.items()},
        "of_best_fixed": sides[AUTO]["ratio"] / best,
        "output_throughput": {name: side["output_throughput"] for name, side in sides.items()},
        "accept_length": sides[AUTO]["accept_length"],
        "texts": {key: record["texts"][key] for key in ("compared", "differ")},
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--concurrency", default="1,2,4,8,16,32,64", help="requests at once")
    parser.add_argument("--rounds", type=int, default=14, help="turns of each side (default: %(default)s)")
    parser.add_argument("--work", type=Path, help="folder for logs and tables (default: a temporary one)")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    loads = [int(n) for n in args.concurrency.split(",")]
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES * len(loads):
        parser.error(f"{len(loads)} loads need {CORES * len(loads)} cores, and here are {len(cores)}")
    with tempfile.TemporaryDirectory() as temporary:
        work = args.work or Path(temporary)
        runs = []
        for i, n in enumerate(loads):
            folder = work / f"load-{n}"
            folder.mkdir(parents=True, exist_ok=True)
            runs.append(start(n, set(cores[CORES * i : CORES * (i + 1)]), args.rounds, folder))
        outputs = [run.communicate()[0] for run in runs]
        failed = [n for n, run in zip(loads, runs, strict=True) if run.returncode]
        if failed:
            print(f"failed at {failed} requests; see the logs with --work", file=sys.stderr)
            return 1
    rows = [load_of(json.loads(out.rstrip().splitlines()[-1])) for out in outputs]
    names = [name for name in rows[0]["over_none"] if name != NONE]
    print("| requests | " + " | ".join(names) + " | of the best |")
    print("|--:|" + "--:|" * (len(names) + 1))
    for row in rows:
        cells = [f"{row['over_none'][name]:.2f}" for name in names]
        print(f"| {row['requests']} | " + " | ".join(cells) + f" | {row['of_best_fixed']:.3f} |")
    tell("auto-in-pairs", {"loads": rows, "rounds": args.rounds, "cores_a_load": CORES}, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
