"""Measures the share of a CUDA device's memory bandwidth that each Triton op reaches in decode steps.

    python benchmarks/cuda_ops.py [--sizes 1b,v3] [--requests 1,32] [--rows 1] [--context 1024]
        [--output benchmarks/results]

Each op runs with several copies of its weights or KV cache in turn, which are together larger than the
device's cache, as with a model's layers. The calls are in one CUDA graph, whose replays are timed. The share
is the bytes that must be read and written (`nextn/bench/dev/micro/op_work.py`) over the time, relative to the
speed of a copy of 1 GiB. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from last_line import tell
from synthetic.sizes import PRESETS, Dimensions
from torch import Tensor

from nextn.bench.dev.micro import op_work
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.machine import slug
from nextn.layers.batch import PackedBatch, Span
from nextn.ops.base import Routing
from nextn.ops.triton.ops import TritonOps

V3 = Dimensions(
    vocab_size=129280, hidden_size=7168, num_hidden_layers=61, num_attention_heads=128,
    intermediate_size=18432, moe_intermediate_size=2048, first_k_dense_replace=3, n_routed_experts=256,
    n_shared_experts=1, num_experts_per_tok=8, n_group=8, topk_group=4, q_lora_rank=1536, kv_lora_rank=512,
    qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
)  # fmt: skip
SIZES = PRESETS | {"v3": V3}
OPS, BF16, PAGE = TritonOps(), torch.bfloat16, 16
SPREAD = 200 << 20  # bytes of all copies together: four times the cache of an H100
CALLS, MOST, REPLAYS = 40, 400, 20  # minimum and maximum calls in a graph; its replays

Call = Callable[[], Any]


class Case(NamedTuple):
    op: str
    work: Work
    calls: list[Call]


@dataclasses.dataclass(frozen=True)
class Step:
    """A decode step of `requests` requests. Each has `rows` rows at the last of its `context` positions."""

    sizes: Dimensions
    requests: int
    rows: int
    context: int
    device: str

    @property
    def total(self) -> int:
        return self.requests * self.rows

    def rand(self, *shape: int, dtype: torch.dtype = BF16) -> Tensor:
        return torch.randn(shape, dtype=dtype, device=self.device)

    def case(self, op: str, work: Work, call: Callable[..., Any], *shapes: tuple[int, ...]) -> Case:
        """Makes a case. call: takes weights of these shapes."""
        size = 2 * sum(math.prod(shape) for shape in shapes)
        copies = max(1, min(MOST, SPREAD // size))
        sets = [[self.rand(*shape).div_(shape[-1] ** 0.5) for shape in shapes] for _ in range(copies)]
        return Case(op, work, [partial(call, *sets[i % copies]) for i in range(max(CALLS, copies))])

    def cases(self) -> Iterator[Case]:
        s, t, two = self.sizes, self.total, 2
        hidden, heads, rank, rope = s.hidden_size, s.num_attention_heads, s.kv_lora_rank, s.qk_rope_head_dim
        nope, value = s.qk_nope_head_dim, s.v_head_dim
        x, stream = self.rand(t, hidden), self.rand(t, hidden, dtype=torch.float32)
        for op, n_out, n_in in (
            ("attention down", s.q_lora_rank + rank + rope, hidden),
            ("query up", heads * (nope + rope), s.q_lora_rank),
            ("attention out", hidden, heads * value),
        ):
            given = self.rand(t, n_in)
            yield self.case(
                op, op_work.linear(t, n_out, n_in, two), partial(OPS.linear, given), (n_out, n_in)
            )
        yield self.case(
            "add_norm", op_work.add_norm(t, hidden, two),
            lambda weight: OPS.add_norm(stream, (stream,), weight, 1e-6), (hidden,),
        )  # fmt: skip
        q, cos = self.rand(t, heads, nope + rope), self.rand(t, rope // 2, dtype=torch.float32)
        yield self.case(
            "absorb", op_work.absorb(t, heads, nope, rank, rope, two),
            lambda up: OPS.absorb(q, up, cos, cos, 0.1), (heads, nope, rank),
        )  # fmt: skip
        yield self.attention(heads, rank, rope)
        mixed = self.rand(t, heads, rank)
        yield self.case(
            "value up", op_work.heads_matmul(t, heads, rank, value, two),
            partial(OPS.heads_matmul, mixed), (heads, rank, value),
        )  # fmt: skip
        yield from self.feed_forward(x)
        yield self.case(
            "head and choice", op_work.best_of_product(t, s.vocab_size, hidden, two),
            partial(OPS.best_of_product, x), (s.vocab_size, hidden),
        )  # fmt: skip

    def attention(self, heads: int, rank: int, rope: int) -> Case:
        pages = -(-self.context // PAGE)
        start = self.context - self.rows
        spans = [
            Span([0] * self.rows, start, range(1 + i * pages, 1 + (i + 1) * pages))
            for i in range(self.requests)
        ]
        batch = PackedBatch(spans, PAGE)
        plan = batch.on(batch.packed.to(self.device)).attention
        q = self.rand(self.total, heads, rank + rope) / (rank + rope) ** 0.5
        one = op_work.mla_attention(self.rows, self.context, heads, rank, rope, 2)
        work = Work(one.bytes * self.requests, one.flops * self.requests)
        slots = PAGE * (1 + pages * self.requests)
        return self.case(
            "attention", work, lambda cache: OPS.mla_attention(q, cache, plan, rank), (slots, rank + rope)
        )

    def feed_forward(self, x: Tensor) -> Iterator[Case]:
        s, t = self.sizes, self.total
        hidden, inner, count, top_k = (
            s.hidden_size, s.moe_intermediate_size, s.n_routed_experts, s.num_experts_per_tok,
        )  # fmt: skip
        router = self.rand(count, hidden, dtype=torch.float32) / hidden**0.5
        bias = torch.zeros(count, device=self.device)
        route = partial(OPS.route, x, router, bias, Routing(s.n_group, s.topk_group, top_k, True, 2.5))
        yield Case("route", op_work.route(t, hidden, count, top_k, 2), [route] * CALLS)
        ids, _ = route()
        distinct = min(count, t * top_k) if ids.is_meta else len(ids.unique())
        yield Case("dispatch", op_work.dispatch(t, top_k), [partial(OPS.dispatch, ids, count)] * CALLS)
        runs = OPS.dispatch(ids, count)
        work = op_work.experts(t, hidden, inner, top_k, distinct, 2)
        yield self.case(
            "experts, shared too", work + op_work.swiglu_mlp(t, hidden, inner, 2),
            lambda gate_up, down: OPS.experts_with_shared(
                x, runs, gate_up[1:], down[1:], gate_up[0], down[0]
            ),
            (count + 1, 2 * inner, hidden), (count + 1, hidden, inner),
        )  # fmt: skip


def seconds(calls: list[Call]) -> float:
    """Median seconds of one call in a graph of all calls."""
    for call in calls:
        call()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in calls:
            call()
    times = []
    for _ in range(REPLAYS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / len(calls))
    return median(times)


def bandwidth() -> float:
    """Bytes per second, read and written, of a copy of 1 GiB. It does not use a graph, in which the copy took
    half as long again."""
    source = torch.zeros(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(3):
        target.copy_(source)
    start.record()
    for _ in range(10):
        target.copy_(source)
    end.record()
    end.synchronize()
    return 10 * 2 * source.numel() / (start.elapsed_time(end) / 1e3)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--sizes", default="1b,v3", help=f"sizes, of {', '.join(SIZES)} (default: %(default)s)"
    )
    parser.add_argument("--requests", default="1,32", help="default: %(default)s")
    parser.add_argument("--rows", type=int, default=1, help="rows of each request (default: %(default)s)")
    parser.add_argument(
        "--context", type=int, default=1024, help="positions of each request (default: %(default)s)"
    )
    parser.add_argument("--output", type=Path, help="folder for the result")
    args = parser.parse_args()
    most, found = bandwidth(), []
    print(f"{torch.cuda.get_device_name()}: a copy reads and writes {most / 1e9:,.0f} GB/s")
    print("| sizes | requests | op | us | MB | of the bandwidth |")
    print("|---|--:|---|--:|--:|--:|")
    for name in args.sizes.split(","):
        for requests in map(int, args.requests.split(",")):
            for op, work, calls in Step(SIZES[name], requests, args.rows, args.context, "cuda").cases():
                took = seconds(calls)
                share = work.bytes / took / most
                megabytes = work.bytes / 1e6
                print(f"| {name} | {requests} | {op} | {took * 1e6:.1f} | {megabytes:,.2f} | {share:.0%} |")
                found.append(
                    {"sizes": name, "requests": requests, "op": op, "seconds": took, "bytes": work.bytes,
                     "flops": work.flops, "share": share}
                )  # fmt: skip
    result = {
        "device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": args.rows,
        "context": args.context, "bytes_per_s": most, "ops": found,
    }  # fmt: skip
    tell(f"cuda-ops_{slug(torch.cuda.get_device_name())}", result, args.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
