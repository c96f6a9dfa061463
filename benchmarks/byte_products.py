"""Compares two ways to multiply with weights in GGUF's formats, on one core: inputs in 8 bits with dot
products of bytes, and inputs in bf16 with f32 arithmetic.

    python benchmarks/byte_products.py                 # needs AVX512-VNNI
    python benchmarks/byte_products.py --rows 1 64

The weights are 2,048 by 2,048, so they fit in a cache. Both ways take turns in one process. The minimum CPU
time of the thread over several runs counts, so that other work on the machine has little effect. The last
line is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import time

import torch

from nextn.ops.cpu.coded import by_bytes
from nextn.ops.cpu.interface import BY_BYTES, KINDS, WAYS
from nextn.ops.cpu.library import library, machine_level
from nextn.ops.cpu.weights import PackedWeight

OUTPUTS = INPUTS = 2048
FLOATS = WAYS.index("f32 multiply-adds")
ROWS = (1, 4, 16, 64, 512)


def seconds(kind: int, rows: int, repeats: int) -> dict[str, float]:
    """Minimum CPU seconds of a product, by way ("bytes", "f32")."""
    kernels = library()
    pool, weight = kernels.nx_pool_new(1), PackedWeight(OUTPUTS, INPUTS, kind)
    x, y = torch.randn(rows, INPUTS).bfloat16(), torch.empty(rows, OUTPUTS)
    best = {"bytes": math.inf, "f32": math.inf}
    for _ in range(repeats):
        for name, way in (("f32", FLOATS), ("bytes", BY_BYTES)):
            weight.struct.way = way
            start = time.thread_time()
            kernels.nx_linear(pool, x.data_ptr(), rows, weight.struct, y.data_ptr())
            best[name] = min(best[name], time.thread_time() - start)
    kernels.nx_pool_free(pool)
    return best


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--repeats", type=int, default=8)
    args = parser.parse_args(argv)
    able = sorted(by_bytes(machine_level()[0]))
    if not able:
        parser.exit(2, "this CPU has no AVX512-VNNI: there is nothing to compare\n")
    found = []
    print("weights  rows  f32 GOP/s  bytes GOP/s  ratio")
    for kind in able:
        for rows in args.rows:
            took = seconds(kind, rows, args.repeats)
            f32, whole = (2e-9 * rows * OUTPUTS * INPUTS / took[name] for name in ("f32", "bytes"))
            print(f"{KINDS[kind]:7}  {rows:4}  {f32:9.0f}  {whole:11.0f}  {whole / f32:5.2f}")
            found.append({"weights": KINDS[kind], "rows": rows, "f32": f32, "bytes": whole})
    print(json.dumps({"gop_s": found}))


if __name__ == "__main__":
    main()
