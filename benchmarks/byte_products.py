"""Compares two ways to multiply with weights in GGUF's formats: inputs in 8 bits with dot products of bytes,
and inputs in bf16 with f32 multiply-adds.

    python benchmarks/byte_products.py                 # needs AVX2, with AVX-512 also VNNI
    python benchmarks/byte_products.py --rows 1 64 --threads 1 --output FOLDER

The weights are matrices of 2,048 by 2,048. With fewer than 16 rows there are so many that they do not fit in
the last-level cache, and they are read in turn, as in a step of a model; with more rows there are two. All
cases take turns in one process, and the minimum times over all rounds count, so that other work on the
machine has little effect. A multiply-add is two operations. The share is of the read bandwidth of memory. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import time
from pathlib import Path

import torch
from last_line import tell
from torch import Tensor

from nextn.bench.machine import this_machine
from nextn.machine import data_caches
from nextn.ops.cpu.coded import by_bytes
from nextn.ops.cpu.interface import BY_BYTES, KINDS, WAYS
from nextn.ops.cpu.library import choose_level, library
from nextn.ops.cpu.weights import PackedWeight, in_large_pages

OUTPUTS = INPUTS = 2048
TURNS = {"f32": WAYS.index("f32 multiply-adds"), "bytes": BY_BYTES}
ROWS, THREADS = (1, 4, 16, 128), (1, 2)
MANY = 16  # rows from which on arithmetic limits the speed, and two weights are enough
SECONDS = 0.08  # of a way's trials in a round, at least


class Products:
    """Products of one number of threads, at a level."""

    def __init__(self, level: str, threads: int) -> None:
        self.kernels = library(level)
        self.pool = self.kernels.nx_pool_new(threads)

    def reading(self, data: Tensor) -> float:
        """Seconds of reading `data`."""
        start = time.perf_counter()
        self.kernels.nx_read(self.pool, data.data_ptr(), data.nbytes)
        return time.perf_counter() - start

    def seconds(self, weights: list[PackedWeight], rows: int) -> dict[str, float]:
        """Minimum seconds of a product with one weight, by way."""
        some = weights if rows < MANY else weights[:2]
        x, y = torch.randn(rows, INPUTS).bfloat16(), torch.empty(rows, OUTPUTS)
        best, began = dict.fromkeys(TURNS, math.inf), time.perf_counter()
        while time.perf_counter() - began < SECONDS * len(TURNS) or math.inf in best.values():
            for name, way in TURNS.items():
                for weight in some:
                    weight.struct.way = way
                start = time.perf_counter()
                for weight in some:
                    self.kernels.nx_linear(self.pool, x.data_ptr(), rows, weight.struct, y.data_ptr())
                best[name] = min(best[name], (time.perf_counter() - start) / len(some))
        return best


def weights_of(kind: int, size: int) -> list[PackedWeight]:
    """At least `size` bytes of weights."""
    weights = [PackedWeight(OUTPUTS, INPUTS, kind)]
    while sum(weight.bytes for weight in weights) < size:
        weights.append(PackedWeight(OUTPUTS, INPUTS, kind))
    return weights


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--threads", type=int, nargs="+", default=THREADS)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--cpu-isa", default="auto", metavar="LEVEL")
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args(argv)
    level = choose_level(args.cpu_isa)[0]
    able = sorted(by_bytes(level))
    if not able:
        parser.exit(2, f"level {level} has no dot products of bytes here: there is nothing to compare\n")
    size = 2 * max(data_caches().values())
    sides = {threads: Products(level, threads) for threads in args.threads}
    data, weights = in_large_pages(4 * size).fill_(1), {kind: weights_of(kind, size) for kind in able}
    reading = dict.fromkeys(args.threads, math.inf)
    cases = list(itertools.product(able, args.threads, args.rows))
    took = {case: dict.fromkeys(TURNS, math.inf) for case in cases}
    for _ in range(args.rounds):
        for threads, side in sides.items():
            reading[threads] = min(reading[threads], side.reading(data))
        for case in cases:
            kind, threads, rows = case
            for name, each in sides[threads].seconds(weights[kind], rows).items():
                took[case][name] = min(took[case][name], each)
    read = {threads: data.nbytes / each for threads, each in reading.items()}
    found = []
    print("weights  threads  rows  f32 GOP/s  bytes GOP/s  ratio  share of reading")
    for (kind, threads, rows), each in took.items():
        speed = {name: round(2e-9 * rows * OUTPUTS * INPUTS / each[name], 1) for name in TURNS}
        share = {name: round(weights[kind][0].bytes / each[name] / read[threads], 2) for name in TURNS}
        print(
            f"{KINDS[kind]:7}  {threads:7}  {rows:4}  {speed['f32']:9}  {speed['bytes']:11}  "
            f"{each['f32'] / each['bytes']:5.2f}  {share['f32']} {share['bytes']}"
        )
        shape = {"weights": KINDS[kind], "threads": threads, "rows": rows}
        found.append({**shape, "gop_s": speed, "share_of_reading": share})
    machine = {**dataclasses.asdict(this_machine()), "level": level}
    gb_s = {threads: round(rate / 1e9, 1) for threads, rate in read.items()}
    tell("byte-products", {"products": found, "read_gb_s": gb_s, "machine": machine}, args.output)


if __name__ == "__main__":
    main()
