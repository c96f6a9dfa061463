"""Calculates limits of expert parallelism with DP attention for DeepSeek-V3: bytes, times, tokens/s.

    python benchmarks/experts_on_paper.py

Nothing is measured. Each rank has its own requests, all attention weights and a part of the routed experts. A
part of a step takes its bytes over the memory's bandwidth or its operations over the peak, whichever is
longer. An exchange takes a latency plus its bytes over the link's bandwidth. So the result is an upper limit
of speed, not a forecast. It is compared with published results. The last line, JSON, names every assumption.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

# DeepSeek-V3's config.json (arXiv 2412.19437, 4.2).
HIDDEN, HEADS, LAYERS, DENSE, VOCABULARY = 7168, 128, 61, 3, 129280
Q_RANK, KV_RANK, ROPE, NOPE, VALUE = 1536, 512, 64, 128, 128
INNER, EXPERT_INNER, EXPERTS, TOP_K = 18432, 2048, 256, 8
LATENT = KV_RANK + ROPE
CACHED = 2 * LATENT  # bytes of a token and layer, bf16
# Number of weights. Each takes one byte (FP8); in router, head and the NextN layer's projection two (bf16).
ATTENTION = (
    HIDDEN * (Q_RANK + LATENT)
    + Q_RANK * HEADS * (NOPE + ROPE)
    + KV_RANK * HEADS * (NOPE + VALUE)
    + HEADS * VALUE * HIDDEN
)
EXPERT = 3 * HIDDEN * EXPERT_INNER
ROUTER, HEAD, PROJECTION = EXPERTS * HIDDEN, VOCABULARY * HIDDEN, 2 * HIDDEN * HIDDEN

NODE = 8  # GPUs
NVLINK, INFINIBAND = 450e9, 50e9  # bytes/s into one GPU; InfiniBand: 400 Gbit/s for each GPU
EXCHANGE = 45e-6  # latency of an exchange, in seconds; with it DeepEP's published table fits within 14 %
RESERVED = 10e9  # bytes of memory for buffers, graphs and activations


class Gpu(NamedTuple):
    name: str
    memory: float  # bytes/s
    capacity: float  # bytes
    fp8: float = 1979e12  # operations/s, dense
    bf16: float = 989.5e12


class Wire(NamedTuple):
    """The format of rows on their way to the experts and back."""

    name: str
    out: int  # bytes of a row to the experts
    once_a_rank: bool  # a rank with several of the row's experts gets the row only once
    back: int  # bytes of a result, for each row and slot


H100, H200 = Gpu("H100", 3.35e12, 80e9), Gpu("H200", 4.8e12, 141e9)
FP8_ROW = HIDDEN + 4 * HIDDEN // 128  # with an f32 scale for each 128 values
DEEPEP = Wire("FP8 per slot, bf16 back", FP8_ROW, False, 2 * HIDDEN)
NEXTN = Wire("bf16 per rank, f32 back", 2 * HIDDEN, True, 4 * HIDDEN)


@dataclass(frozen=True)
class Setting:
    ep: int
    requests: float  # per rank
    context: int = 2000
    drafts: int = 0
    accept: float = 1.0  # tokens per request and step
    wire: Wire = DEEPEP
    gpu: Gpu = H100
    redundant: int = 0  # minimum number of redundant experts; more are added to fill the ranks equally
    load: float = 1.0  # rows of the fullest rank over the mean

    @property
    def rows(self) -> float:
        return self.requests * (1 + self.drafts)

    @property
    def local(self) -> int:
        """Routed experts per rank and layer."""
        return -(-(EXPERTS + self.redundant) // self.ep)

    @property
    def moe_layers(self) -> int:
        """MoE layers that a step passes: the target's, and for each draft the NextN layer. The NextN layer's
        experts are distributed over the ranks too."""
        return LAYERS - DENSE + self.drafts


def attention(s: Setting) -> float:
    """Seconds of attention (absorbed MLA: all heads read the same latents)."""
    tokens = s.context * (LAYERS + s.drafts)
    read = s.requests * tokens * CACHED / s.gpu.memory
    return max(read, s.rows * tokens * 2 * HEADS * (LATENT + KV_RANK) / s.gpu.bf16)


def matrices(s: Setting) -> tuple[int, int]:
    """Number of weights that every rank has and a step reads: (in FP8, in bf16)."""
    fp8 = (LAYERS + s.drafts) * ATTENTION + DENSE * 3 * HIDDEN * INNER + s.moe_layers * EXPERT
    return fp8, s.moe_layers * ROUTER + (1 + s.drafts) * HEAD + s.drafts * PROJECTION


def dense(s: Setting) -> float:
    """Seconds of projections, dense layers, shared experts, router and head."""
    fp8, bf16 = matrices(s)
    products = max(fp8 / s.gpu.memory, 2 * s.rows * fp8 / s.gpu.fp8)
    return products + max(2 * bf16 / s.gpu.memory, 2 * s.rows * bf16 / s.gpu.bf16)


def experts(s: Setting) -> float:
    """Seconds of the fullest rank's routed experts. With few rows, some experts are not used and not read."""
    reached = 1 - math.pow(1 - TOP_K / (s.local * s.ep), s.rows * s.ep)
    read = reached * s.local * EXPERT / s.gpu.memory
    return s.moe_layers * max(read, 2 * s.load * s.rows * TOP_K * EXPERT / s.gpu.fp8)


def distinct(places: float) -> float:
    """Mean number of ranks or nodes, out of `places`, that a row goes to if experts are chosen evenly."""
    return places * (1 - math.pow(1 - 1 / places, TOP_K))


def copies(ep: int, once_a_rank: bool) -> float:
    return distinct(ep) if once_a_rank else TOP_K


def elsewhere(ep: int) -> float:
    """The share of ranks that are on other nodes."""
    return 1 - min(NODE, ep) / ep


def exchanges(s: Setting) -> tuple[float, float]:
    """Seconds of all dispatches, and of all combines. Both links work at the same time."""
    times = []
    for sent in (s.wire.out * copies(s.ep, s.wire.once_a_rank), s.wire.back * TOP_K):
        bytes_ = s.load * s.rows * sent
        beside = (min(NODE, s.ep) - 1) / s.ep
        times.append(EXCHANGE + max(bytes_ * elsewhere(s.ep) / INFINIBAND, bytes_ * beside / NVLINK))
    return s.moe_layers * times[0], s.moe_layers * times[1]


def computed(s: Setting) -> float:
    return attention(s) + dense(s) + experts(s)


def step(s: Setting) -> float:
    """Seconds of a step without overlap."""
    return computed(s) + sum(exchanges(s))


def overlapped(s: Setting) -> float:
    """Seconds of a step with two-batch overlap. One half of the batch computes while the other communicates;
    each half reads all weights."""
    half = replace(s, requests=s.requests / 2)
    return 2 * max(computed(half), sum(exchanges(half)))


def per_gpu(s: Setting, seconds: float) -> float:
    return s.requests * s.accept / seconds


def room(s: Setting) -> float:
    """Bytes of a GPU's memory for the KV cache."""
    fp8, bf16 = matrices(s)
    return s.gpu.capacity - RESERVED - fp8 - 2 * (bf16 + HEAD) - s.local * s.moe_layers * EXPERT


def fitting(s: Setting) -> int:
    """Maximum number of requests of a rank whose contexts fit in its memory."""
    return int(room(s) / (s.context * LAYERS * CACHED))


def compute_bound(gpu: Gpu) -> float:
    """Minimum rows with which an FP8 expert takes longer to compute than to read."""
    return gpu.fp8 / (2 * gpu.memory)


def by_chance(ep: int, rows: float) -> float:
    """Rows of the fullest rank over the mean if all experts are equally likely (normal approximation)."""
    return 1 + math.sqrt(2 * math.log(ep) / (rows * TOP_K))


EPS = (16, 32, 72, 144)
PARTS = ("attention", "dense", "experts", "dispatch", "combine", "step", "overlapped")
LARGE = Setting(72, 256)
SIMULATED = Setting(72, 128, 4000, 1, 1.6)  # the publisher assumed 60 % acceptance
SMALL = Setting(16, 2, 65536 + 4096 // 2, gpu=H200, redundant=32)
# (name, setting, published tokens/s per GPU, the function of the time that it is compared with)
PUBLISHED = (
    ("EP72, 256 requests, two-batch overlap", LARGE, 22282 / NODE, overlapped),
    ("the same without overlap", LARGE, 22310 / 1.255 / NODE, step),
    ("EP72, 128 requests, simulated MTP, two-batch overlap", SIMULATED, 17373 / NODE, overlapped),
    ("the same without overlap", SIMULATED, 12929 / NODE, step),
    ("EP16 of H200, 2 requests, 65,536 tokens", SMALL, 51.0, step),
    ("the same with overlap scheduling", SMALL, 60.4, step),
    ("with 2 drafts, without overlap scheduling", replace(SMALL, drafts=2, accept=2.18), 81.5, step),
)
# DeepEP's low-latency kernels with 128 rows per rank: ep -> microseconds of (dispatch, combine).
DEEPEP_TABLE = {16: (118, 195), 32: (155, 273), 64: (173, 314), 128: (192, 369)}


def with_draft(s: Setting) -> Setting:
    """The setting with one draft, accepted as in DeepSeek-V3's report: 85 to 90 %, 1.8 times the tokens/s."""
    return replace(s, drafts=1, accept=1.8)


def best(s: Setting) -> float:
    """Tokens/s per GPU, with or without overlap, whichever is faster."""
    return per_gpu(s, min(step(s), overlapped(s)))


def layer_us(s: Setting) -> list[float]:
    """Microseconds of a layer's dispatch and combine."""
    return [1e6 * seconds / s.moe_layers for seconds in exchanges(s)]


def table(heads: str, rows: list[list[str]]) -> None:
    print(f"| {heads} |\n|---|{'--:|' * heads.count('|')}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def print_memory() -> None:
    rows = []
    for ep in EPS:
        s = Setting(ep, 1)
        routed = s.local * s.moe_layers * EXPERT
        need = compute_bound(H100) * s.local / TOP_K
        gb = [f"{bytes_ / 1e9:.1f}" for bytes_ in (routed, room(s))]
        bound = [f"{need / (1 + drafts):.0f}" for drafts in (0, 1, 3)]
        rows.append([str(ep), str(s.local), *gb, str(fitting(s)), *bound, f"{need * ep:,.0f}"])
    fp8, bf16 = matrices(Setting(16, 1))
    print(f"beside routed experts each rank has {(fp8 + 2 * (bf16 + HEAD)) / 1e9:.1f} GB of weights")
    print(f"an FP8 expert is compute-bound from {compute_bound(H100):.0f} rows\n")
    heads = "ep | experts per rank | their GB | GB for KV | requests that fit | compute-bound from"
    table(f"{heads} | with 1 draft | with 3 | rows of all ranks", rows)


def print_wire() -> None:
    rows = []
    for ep in EPS:
        far = elsewhere(ep)
        sent = [f"{far * places:.1f}" for places in (TOP_K, distinct(ep), distinct(ep / NODE))]
        cells = []
        for wire in (DEEPEP, NEXTN):
            out, back = wire.out * copies(ep, wire.once_a_rank), wire.back * TOP_K
            took = sum(layer_us(Setting(ep, 128, wire=wire)))
            cells += [f"{out / 1024:.0f} + {back / 1024:.0f}", f"{took:.0f}"]
        rows.append([str(ep), " / ".join(sent), *cells])
    heads = f"ep | copies between nodes per slot / rank / node | {DEEPEP.name}: KiB | us"
    table(f"{heads} | {NEXTN.name}: KiB | us", rows)
    for ep, published in DEEPEP_TABLE.items():
        ours = " + ".join(f"{us:.0f}" for us in layer_us(Setting(ep, 128)))
        print(f"ep {ep}: DeepEP published {published[0]} + {published[1]} us, here {ours}")
    row = sum(bytes_ * TOP_K * elsewhere(72) / INFINIBAND for bytes_ in (DEEPEP.out, DEEPEP.back))
    flops = 2 * TOP_K * EXPERT / H100.fp8
    print(f"a row and layer, ep 72: {1e6 * row:.1f} us on InfiniBand, {1e6 * flops:.2f} us in experts")
    print(f"so no batch gets past {NODE / row / (LAYERS - DENSE):,.0f} tokens/s of a node\n")


def timed(s: Setting) -> dict[str, Any]:
    """A setting, the seconds of its parts, and the requests that fit."""
    dispatch, combine = exchanges(s)
    times = (attention(s), dense(s), experts(s), dispatch, combine, step(s), overlapped(s))
    setting = {**asdict(s), "wire": s.wire.name, "gpu": s.gpu.name}
    return {"setting": setting, **dict(zip(PARTS, times, strict=True)), "fits": fitting(s)}


def print_times() -> list[dict[str, Any]]:
    cells, rows = [], []
    for ep in EPS:
        for requests in (32, 128, 256):
            s = Setting(ep, requests)
            cells.append(cell := timed(s))
            ms = [f"{1e3 * cell[part]:.1f}" for part in PARTS]
            node = f"{NODE * best(s):,.0f}" if requests <= cell["fits"] else "no room"
            rows.append([str(ep), str(requests), *ms, node])
    table(f"ep | requests | {' | '.join(PARTS)} | tokens/s of a node", rows)
    return cells


def print_gains() -> None:
    rows = []
    for requests in (2, 32, 128, 256):
        plain = Setting(72, requests)
        mtp = with_draft(plain)
        gains = (
            best(mtp) / best(plain),
            per_gpu(mtp, step(mtp)) / per_gpu(plain, step(plain)),
            step(plain) / overlapped(plain),
            best(replace(plain, wire=NEXTN)) / best(plain),
        )
        rows.append([str(requests), *(f"{gain:.2f}" for gain in gains)])
    heads = "requests | 1 draft | 1 draft, without overlap | two-batch overlap, without drafts"
    table(f"{heads} | nextn's formats", rows)
    gone = next(b for b in range(1, 1024) if best(with_draft(Setting(72, b))) < best(Setting(72, b)))
    print(f"ep 72: 1 draft gains nothing from {gone} requests on")
    byte = 2 * HEADS * (LATENT + KV_RANK) / CACHED
    print(
        f"MLA: {byte:.0f} operations for a byte of KV cache and row, balance {H100.bf16 / H100.memory:.0f}\n"
    )


def print_balance() -> None:
    rows = []
    for load in (1.0, 1.25, 1.5, 2.0, 3.0):
        times = [time(replace(LARGE, load=load)) / time(LARGE) for time in (experts, step, overlapped)]
        rows.append([f"{load:.2f}", *(f"{t:.2f}" for t in times)])
    table("fullest rank over the mean | experts' time | step | overlapped step", rows)
    chance = [f"{by_chance(72, rows_):.2f} at {rows_} rows" for rows_ in (32, 128, 256)]
    print(f"by chance alone, ep 72: {', '.join(chance)} of a rank")
    layer = EXPERTS * EXPERT
    print(f"the NextN layer's experts: {layer / 1e9:.1f} GB, read in {1e3 * layer / H100.memory:.1f} ms\n")


def print_published() -> list[dict[str, Any]]:
    rows, cells = [], []
    for name, s, published, time in PUBLISHED:
        ours = per_gpu(s, time(s))
        ms = [f"{1e3 * s.requests * s.accept / speed:.0f}" for speed in (published, ours)]
        rows.append([name, f"{published:,.0f}", f"{ours:,.0f}", f"{published / ours:.0%}", *ms])
        cells.append({"name": name, "published": published, "model": ours, **timed(s)})
    table("published | tokens/s of a GPU | limit here | share | ms of its step | here", rows)
    plain = Setting(96, 128, gpu=H200)
    mtp = with_draft(plain)
    gains = best(mtp) / best(plain), per_gpu(mtp, step(mtp)) / per_gpu(plain, step(plain))
    print("96 H200, 128 requests, 1 draft: published 1.14 x", end=", ")
    print(f"here {gains[0]:.2f} x, without overlap {gains[1]:.2f} x")
    return cells


def main() -> None:
    print_memory()
    print_wire()
    cells = print_times()
    print_gains()
    print_balance()
    published = print_published()
    assumptions = {
        "gpus": [H100._asdict(), H200._asdict()],
        "links": {"nvlink": NVLINK, "infiniband": INFINIBAND, "gpus_of_a_node": NODE, "exchange_s": EXCHANGE},
        "bytes": {
            "reserved": RESERVED,
            "kv_of_a_token_and_layer": CACHED,
            "weights": "FP8; head, router bf16",
        },
        "wires": [DEEPEP._asdict(), NEXTN._asdict()],
        "accept_length_of_one_draft": 1.8,
        "efficiency": 1.0,
        "measured": False,
    }
    print(json.dumps({"assumptions": assumptions, "cells": cells, "published": published}))


if __name__ == "__main__":
    main()
