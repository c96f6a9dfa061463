"""Calculates the bytes and time of tensor parallelism's collectives for DeepSeek-V3, by link and rows.

    python benchmarks/collective_bytes.py

nextn splits outputs and gathers them, so that results have the same bits as on one device. Others split sums
and all-reduce them in bf16. A collective takes its latency plus its bytes over the link's bandwidth. The
latencies are assumptions, of the size that vendors and NCCL's tests report. The last line, JSON, names them.
"""

from __future__ import annotations

import json

KIB = 1024
# DeepSeek-V3's config.json (arXiv 2412.19437, 4.2).
HIDDEN, HEADS, VALUE, LAYERS, DENSE = 7168, 128, 128, 61, 3
INNER, EXPERT_INNER, TOP_K, SHARED = 18432, 2048, 8, 1
ACTIVE_BYTES = 37e9  # weights that one token reads, in FP8
MEMORY = 3.35e12  # bytes/s of an H100 SXM
LINKS = {  # (bytes/s into one GPU, seconds of a small collective)
    "NVLink (450 GB/s)": (450e9, 8e-6),
    "InfiniBand (50 GB/s)": (50e9, 20e-6),
    "Ethernet, 100 Gbit (12.5 GB/s)": (12.5e9, 60e-6),
}
GATHERS = 4  # in a layer: values, attention's output, inner, the feed-forward block's output
REDUCES = 2
ROWS = (1, 8, 64, 512)


def gathered(layer: int) -> int:
    """Bytes of a row that a layer gathers, all ranks' parts together."""
    inner = INNER if layer < DENSE else EXPERT_INNER * (TOP_K + SHARED)
    return 2 * HEADS * VALUE + 4 * HIDDEN + 2 * inner + 4 * HIDDEN


def reduced() -> int:
    """Bytes of a row that a layer all-reduces in bf16. A ring sends everything twice."""
    return REDUCES * 2 * 2 * HIDDEN


def main() -> None:
    per_row = sum(map(gathered, range(LAYERS)))
    one = gathered(LAYERS - 1)
    print(f"a row and layer: gathered {one / KIB:.0f} KiB, all-reduced {reduced() / KIB:.0f} KiB")
    print(f"a row, {LAYERS} layers: gathered {per_row / KIB / KIB:.2f} MiB, all-reduced "
          f"{LAYERS * reduced() / KIB / KIB:.2f} MiB; each rank receives (p - 1) / p of it\n")  # fmt: skip
    print("| ranks | link | rows of a step | gathers, ms | all-reduces, ms |\n|--:|---|--:|--:|--:|")
    cells = []
    for size in (8, 16):
        share = (size - 1) / size
        for link, (bandwidth, latency) in LINKS.items():
            for rows in ROWS:
                ours = GATHERS * LAYERS * latency + rows * per_row * share / bandwidth
                theirs = REDUCES * LAYERS * latency + rows * LAYERS * reduced() * share / bandwidth
                cells.append({"ranks": size, "link": link, "rows": rows, "gathers": ours, "reduces": theirs})
                print(f"| {size} | {link} | {rows} | {1e3 * ours:.2f} | {1e3 * theirs:.2f} |")
    for size in (8, 16):
        print(f"weights of one row over {size} GPUs: {1e3 * ACTIVE_BYTES / size / MEMORY:.2f} ms")
    print(json.dumps({"links": LINKS, "gathers": GATHERS, "reduces": REDUCES, "cells": cells}))


if __name__ == "__main__":
    main()
