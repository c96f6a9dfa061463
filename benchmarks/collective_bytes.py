"""Calculates the bytes and time of tensor parallelism's collectives for DeepSeek-V3, by link and rows.

    python benchmarks/collective_bytes.py

nextn splits outputs and gathers them, so that results have the same bits as on one device. Others split sums
and all-reduce them in bf16. A collective takes its latency plus its bytes over the link's bandwidth. The
latencies are assumptions, of the size that vendors and NCCL's tests report. Numbers of gathers and bytes are
those of the model for GPUs (`nextn.models.torch_model`). The last line, JSON, names all assumptions.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import experts_on_paper as paper

KIB = 1024
BF16, F32 = 2, 4
LINKS = {  # (bytes/s into one GPU, seconds of a small collective)
    "NVLink (450 GB/s)": (450e9, 8e-6),
    "InfiniBand (50 GB/s)": (50e9, 20e-6),
    "Ethernet, 100 Gbit (12.5 GB/s)": (12.5e9, 60e-6),
}
RANKS, ROWS = (8, 16), (1, 8, 64, 512)
ACCEPT = 1.8  # tokens per step with one draft, as in DeepSeek-V3's report
MEMORY = paper.H100.memory


@dataclass(frozen=True)
class Traffic:
    """Collectives, and the bytes of all ranks' parts together."""

    collectives: int
    bytes: float

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.collectives + other.collectives, self.bytes + other.bytes)

    def times(self, n: int) -> Traffic:
        return Traffic(n * self.collectives, n * self.bytes)

    def seconds(self, ranks: int, link: str) -> float:
        bandwidth, latency = LINKS[link]
        return self.collectives * latency + self.bytes * (ranks - 1) / ranks / bandwidth


@dataclass(frozen=True)
class Model:
    """values: width of attention's values, of all heads together. inner: of the dense layers."""

    hidden: int = paper.HIDDEN
    values: int = paper.HEADS * paper.VALUE
    inner: int = paper.INNER
    expert_inner: int = paper.EXPERT_INNER
    top_k: int = paper.TOP_K
    shared: int = 1
    vocabulary: int = paper.VOCABULARY
    layers: int = paper.LAYERS
    dense: int = paper.DENSE

    def dense_layer(self, rows: float) -> Traffic:
        """Gathers values, the output of attention, the inner columns, and the output of the block."""
        return Traffic(4, rows * (BF16 * (self.values + self.inner) + F32 * 2 * self.hidden))

    def moe_layer(self, rows: float) -> Traffic:
        """Shared and routed experts gather their inner columns separately, and both outputs in one gather,
        because they are added to the residual stream one after the other."""
        inner = self.expert_inner * (self.top_k + self.shared)
        return Traffic(5, rows * (BF16 * (self.values + inner) + F32 * 3 * self.hidden))

    def head(self, rows: float) -> Traffic:
        """A gather of whole logits."""
        return Traffic(1, rows * F32 * self.vocabulary)

    def target(self, rows: float) -> Traffic:
        """A step of `rows` rows, each with a choice."""
        moe = self.moe_layer(rows).times(self.layers - self.dense)
        return self.dense_layer(rows).times(self.dense) + moe + self.head(rows)

    def drafts(self, requests: int, count: int, accept: float) -> Traffic:
        """`count` drafts for each request. The NextN layer first passes over all committed tokens, then
        over one row of each request for each further draft."""
        if not count:
            return Traffic(0, 0)
        passes = [requests * accept, *[requests] * (count - 1)]
        found = [self.moe_layer(rows) + self.head(requests) for rows in passes]
        return sum(found, Traffic(0, 0))

    def reduced_layer(self, rows: float) -> Traffic:
        """Two all-reduces of bf16. A ring sends everything twice."""
        return Traffic(2, rows * 2 * 2 * BF16 * self.hidden)

    def reduced(self, rows: float) -> Traffic:
        """`target` with all-reduces. Logits are gathered as well."""
        return self.reduced_layer(rows).times(self.layers) + self.head(rows)


V3 = Model()

# Weights. Most are FP8, one byte. kv_b, the head and the NextN layer's projection are bf16, the router f32.
LATENTS = paper.HIDDEN * (paper.Q_RANK + paper.LATENT)  # q_a and kv_a
KV_B = paper.KV_RANK * paper.HEADS * (paper.NOPE + paper.VALUE)
MOE_LAYERS = V3.layers - V3.dense


def whole_bytes(drafts: int) -> float:
    """Weights that every rank reads in a step: q_a, kv_a, the router, and the NextN layer's projection."""
    routers = (MOE_LAYERS + drafts) * F32 * paper.ROUTER
    return (V3.layers + drafts) * LATENTS + routers + drafts * BF16 * paper.PROJECTION


def split_bytes(rows: float, drafts: int) -> float:
    """All other weights of a step of one request. Each rank reads its part. Rows choose experts
    independently."""
    attention, head = paper.ATTENTION - LATENTS + KV_B, BF16 * paper.HEAD

    def experts(rows: float) -> float:
        routed = paper.EXPERTS * (1 - math.pow(1 - paper.TOP_K / paper.EXPERTS, rows))
        return (V3.shared + routed) * paper.EXPERT

    dense = V3.dense * 3 * paper.HIDDEN * paper.INNER
    target = V3.layers * attention + dense + MOE_LAYERS * experts(rows) + head
    passes = [ACCEPT, *[1.0] * (drafts - 1)] if drafts else []
    return target + sum(attention + experts(n) + head for n in passes)


def reading(ranks: int, drafts: int = 0) -> float:
    """Seconds in which a rank reads the weights for a step of one request."""
    return (whole_bytes(drafts) + split_bytes(1 + drafts, drafts) / ranks) / MEMORY


def print_bytes() -> None:
    parts = (
        ("a dense layer", V3.dense_layer(1)),
        ("an MoE layer", V3.moe_layer(1)),
        ("a layer with all-reduces instead", V3.reduced_layer(1)),
        ("the head", V3.head(1)),
        (f"{V3.layers} layers and the head", V3.target(1)),
        ("the same with all-reduces", V3.reduced(1)),
        ("the NextN layer and its head", V3.drafts(1, 1, 1.0)),
    )
    print("| of one row | collectives | KiB |\n|---|--:|--:|")
    for name, part in parts:
        print(f"| {name} | {part.collectives} | {part.bytes / KIB:,.0f} |")
    print()


def print_times() -> list[dict[str, Any]]:
    cells = []
    print("| ranks | link | 1 row | 8 rows | 64 rows | 512 rows |\n|--:|---|--:|--:|--:|--:|")
    for ranks in RANKS:
        for link in LINKS:
            shown = []
            for rows in ROWS:
                ours, theirs = (t.seconds(ranks, link) for t in (V3.target(rows), V3.reduced(rows)))
                cells.append({"ranks": ranks, "link": link, "rows": rows, "gathers": ours, "reduces": theirs})
                shown.append(f"{1e3 * ours:.1f} / {1e3 * theirs:.1f}")
            print(f"| {ranks} | {link} | {' | '.join(shown)} |")
    print()
    return cells


def print_drafts() -> list[dict[str, Any]]:
    """One request without drafts and with one."""
    cells = []
    print("| ranks | link | weights | collectives | weights, 1 draft | collectives, 1 draft | tokens/s |")
    print("|--:|---|--:|--:|--:|--:|--:|")
    for ranks in RANKS:
        read = reading(ranks), reading(ranks, 1)
        for link in (None, *LINKS):
            steps = V3.target(1), V3.target(2) + V3.drafts(1, 1, ACCEPT)
            sent = [0.0 if link is None else step.seconds(ranks, link) for step in steps]
            gain = ACCEPT * (read[0] + sent[0]) / (read[1] + sent[1])
            cells.append({"ranks": ranks, "link": link, "reading": read, "collectives": sent, "gain": gain})
            ms = [f"{1e3 * seconds:.1f}" for pair in zip(read, sent, strict=True) for seconds in pair]
            print(f"| {ranks} | {link or 'without collectives'} | {' | '.join(ms)} | {gain:.2f} x |")
    print()
    return cells


def main() -> None:
    print_bytes()
    cells = print_times()
    drafts = print_drafts()
    whole, split = whole_bytes(0) / 1e9, split_bytes(1, 0) / 1e9
    print(f"weights of one row: {whole:.2f} GB on every rank, {split:.1f} GB divided among the ranks")
    assumptions = {"links": LINKS, "memory": MEMORY, "accept": ACCEPT, "model": asdict(V3), "measured": False}
    print(json.dumps({"assumptions": assumptions, "cells": cells, "drafts": drafts}))


if __name__ == "__main__":
    main()
