"""Cases for the clock: the native kernels at the shapes of a model, to compare with the ops of `cases`.

A case has the name, shape and rows of the op that does the same work. Weights and KV entries come from the
arena, and each call uses another piece of it. A weight's panels have the arena's numbers: the kernels' speed
does not depend on them. If a matrix's inputs are not whole blocks of the format, it is in bf16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nextn.bench.dev.micro import op_work
from nextn.bench.dev.micro.arena import Arena
from nextn.bench.dev.micro.arithmetic import Shares, of_weight, shares
from nextn.bench.dev.micro.cases import HEADLINE, LINEAR, PAGE, ROUTED, ROWS, OpCase, product_uses
from nextn.bench.dev.micro.clock import NATIVE, Case
from nextn.bench.dev.micro.formats import BFLOAT16, FORMATS, WeightFormat
from nextn.bench.dev.micro.native_pool import NativeCall, NativePool
from nextn.bench.dev.micro.native_work import weight_bytes
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.routing import Routing
from nextn.families.config import ModelConfig
from nextn.layers.batch import PackedBatch, Span
from nextn.layers.mlp import routing_of
from nextn.models.native import native_batch
from nextn.ops.base import align
from nextn.ops.cpu.heads import grouped_heads, latent_heads
from nextn.ops.cpu.interface import F32, FeedForward, Weight
from nextn.ops.cpu.weights import PackedWeight, padded

BACKEND = "cpu"
HEADLINE_FORMATS = ("bf16", "e4m3", "int8")


@dataclass(frozen=True)
class NativeBench:
    """The cases of the native kernels. end: positions in the cache that attention sees. format: format of the
    weights. way: kind of weights -> arithmetic of their products (`nextn.ops.cpu.ways`). past: few rows
    read weights past the caches (`nextn.ops.cpu.reading`)."""

    pool: NativePool
    cfg: ModelConfig
    arena: Arena
    end: int
    format: WeightFormat = BFLOAT16
    way: Callable[[int], int] = lambda kind: 0
    past: bool = False

    def cases(self, counts: Sequence[int] = ROWS) -> list[OpCase]:
        makers = (self.linears, self.attention, self.feed_forward)
        found = [one for make in makers for rows in counts for one in make(rows)]
        order = {use: i for i, use in enumerate(dict.fromkeys((one.op, one.what) for one in found))}
        return sorted(found, key=lambda one: order[one.op, one.what])

    def headline(self, counts: Sequence[int] = ROWS) -> list[OpCase]:
        """Cases of the headline product in bf16, e4m3 and int8, and in the format of the other cases."""
        formats = dict.fromkeys((*(FORMATS[name] for name in HEADLINE_FORMATS), self.format))
        return [self.linear(rows, HEADLINE, *LINEAR, one) for one in formats for rows in counts]

    def linears(self, rows: int) -> Iterator[OpCase]:
        for what, n_out, n_in in product_uses(self.cfg):
            yield self.linear(rows, what, n_out, n_in)

    def linear(
        self, rows: int, what: str, n_out: int, n_in: int, format: WeightFormat | None = None
    ) -> OpCase:
        weights = self.weights((n_out, n_in, 1), format=format)
        x, first = self.half(rows, n_in), weights[0][0]
        y = torch.empty(rows, first.n_out)
        linear = self.pool.library.nx_linear
        calls = [
            NativeCall(linear, (self.pool.handle, x.data_ptr(), rows, w, y.data_ptr()), x, y)
            for (w,) in weights
        ]
        work = op_work.packed_linear(rows, n_out, n_in, weight_bytes(first), 2)
        parts = self.shares((first, 1.0))
        name = self.named(n_in, format=format)
        return self.made("linear", what, f"{n_out}x{n_in}", rows, work, calls, name, parts)

    def attention(self, rows: int) -> Iterator[OpCase]:
        """Attention of one request that extends by `rows`, up to position `end`."""
        cfg, end, heads = self.cfg, self.end, self.cfg.num_attention_heads
        if rows > end:
            return
        if cfg.gqa is None:
            op, rank = "mla_attention", cfg.kv_lora_rank
            of = latent_heads(heads, padded(rank, 32), padded(cfg.latent_dim, 32))
            work = op_work.mla_attention(rows, end, heads, rank, cfg.qk_rope_head_dim, 2)
            shape = f"{heads}x{cfg.latent_dim}, {end} keys"
        else:
            op, groups, dim = "gqa_attention", cfg.gqa.num_key_value_heads, cfg.gqa.head_dim
            of = grouped_heads(groups, heads // groups, dim, dim)
            work = op_work.gqa_attention(rows, end, heads, groups, dim, 2)
            shape = f"{heads} of {groups}x{dim}, {end} keys"
        width = of.groups * of.stride
        pages = range(1, 1 + align(end, PAGE) // PAGE)
        batch = PackedBatch([Span([0] * rows, end - rows, list(pages))], PAGE)
        q = (self.random(rows, heads * of.key) * of.key**-0.5).bfloat16()
        out = torch.empty(rows, heads, of.columns, dtype=torch.bfloat16)
        caches = self.arena.sets(torch.bfloat16, (PAGE * (len(pages) + 1), width))
        calls = [
            NativeCall(
                self.pool.library.nx_attention,
                (
                    self.pool.handle, native_batch(batch), cache.data_ptr(), width, PAGE, of, q.data_ptr(),
                    out.data_ptr(),
                ),
                batch, q, out,
            )
            for (cache,) in caches
        ]  # fmt: skip
        parts = {self.pool.able[0]: 1.0}
        yield self.made(op, "one request", shape, rows, work, calls, BFLOAT16.name, parts)

    def feed_forward(self, rows: int) -> Iterator[OpCase]:
        cfg = self.cfg
        if cfg.first_k_dense_replace:
            yield self.mlp(rows, "dense", cfg.intermediate_size)
        if not cfg.n_routed_experts:
            return
        if cfg.n_shared_experts:
            yield self.mlp(rows, "shared expert", cfg.n_shared_experts * cfg.moe_intermediate_size)
        yield self.routed(rows)

    def mlp(self, rows: int, what: str, inner: int) -> OpCase:
        hidden = self.cfg.hidden_size
        h, pairs = self.random(rows, hidden), self.mlp_weights(inner, 1)
        blocks = [FeedForward(shared_gate_up=up, shared_down=down) for up, down in pairs]
        calls = [self.feed(block, h) for block in blocks]
        stored = sum(map(weight_bytes, pairs[0]))
        work = op_work.packed_mlp(rows, hidden, inner, stored, 2)
        parts = self.shares(*((w, 1.0) for w in pairs[0]))
        name = self.named(hidden, inner)
        return self.made("swiglu_mlp", what, f"{hidden}x{inner}", rows, work, calls, name, parts)

    def routed(self, rows: int) -> OpCase:
        """The router and its experts. Each pass over the arena has other input rows and so other experts."""
        cfg = self.cfg
        routing = Routing(cfg, rows)
        router = PackedWeight(cfg.n_routed_experts, cfg.hidden_size, F32)
        router.place(routing.router)
        sets = self.mlp_weights(cfg.moe_intermediate_size, cfg.n_routed_experts)
        routers = router.data.repeat(len(sets), 1)
        bias = torch.zeros(padded(cfg.n_routed_experts, 16))
        blocks = []
        for data, (up, down) in zip(routers, sets, strict=True):
            block = FeedForward(
                router=moved(router.struct, data), bias=bias.data_ptr(), gate_up=up, down=down,
                experts=cfg.n_routed_experts, **routing_of(cfg)._asdict(),
            )  # fmt: skip
            blocks.append(block)
        calls = [self.feed(block, h, routers, bias) for h in routing.inputs for block in blocks]
        work = routing.work(sum(map(weight_bytes, sets[0])), 2)
        parts = self.shares((router.struct, 1.0), *((w, cfg.num_experts_per_tok) for w in sets[0]))
        name = self.named(cfg.hidden_size, cfg.moe_intermediate_size)
        return self.made("feed_forward", ROUTED, routing.shape, rows, work, calls, name, parts)

    def feed(self, block: FeedForward, h: Tensor, *kept: object) -> NativeCall:
        """A call of a feed-forward block. block: its weights. h [rows, hidden] f32. kept: objects that the
        block's pointers need."""
        stride = padded(h.shape[1], 32)
        wide = torch.nn.functional.pad(h, (0, stride - h.shape[1])).contiguous()
        half, out = wide.bfloat16(), torch.zeros_like(wide)
        pointers = wide.data_ptr(), half.data_ptr()
        return NativeCall(
            self.pool.library.nx_feed_forward,
            (self.pool.handle, block, *pointers, len(h), stride, out.data_ptr(), None, None),
            *kept, block, wide, half, out,
        )  # fmt: skip

    def mlp_weights(self, inner: int, members: int) -> list[list[Weight]]:
        hidden = self.cfg.hidden_size
        return self.weights((2 * padded(inner, 16), hidden, members), (hidden, inner, members))

    def weights(
        self, *matrices: tuple[int, int, int], format: WeightFormat | None = None
    ) -> list[list[Weight]]:
        """Makes sets of weights whose panels are in the arena. A set has one weight for each matrix, in
        order. matrices: (n_out, n_in, members)."""
        models, shapes = [], []
        for n_out, n_in, members in matrices:
            chosen = self.chosen(n_in, format)
            one = PackedWeight(n_out, n_in, chosen.kind, block=chosen.block)
            one.struct.way, one.struct.non_temporal = self.way(chosen.kind), self.past
            models.append(one.struct)
            shapes += [(members * one.struct.stride,), (members * 4 * one.struct.scale_stride,)]
        return [
            [moved(w, *pair) for w, pair in zip(models, zip(one[::2], one[1::2], strict=True), strict=True)]
            for one in self.arena.sets(torch.uint8, *shapes)
        ]

    def chosen(self, n_in: int, format: WeightFormat | None = None) -> WeightFormat:
        """The format of a matrix with n_in inputs."""
        wanted = format or self.format
        return wanted if wanted.fits(n_in) else BFLOAT16

    def named(self, *inputs: int, format: WeightFormat | None = None) -> str:
        """The names of the formats of matrices with these numbers of inputs, without repetitions."""
        return ", ".join(dict.fromkeys(self.chosen(n_in, format).name for n_in in inputs))

    def shares(self, *weights: tuple[Weight, float]) -> Shares:
        """Shares of the operations by arithmetic. weights: (a weight, number of its members that a row is
        multiplied with)."""
        return shares((of_weight(w, self.pool.able), n * w.n_out * w.n_in) for w, n in weights)

    def half(self, rows: int, n: int) -> Tensor:
        """A bf16 input [rows, n], n rounded up to an even number."""
        return self.random(rows, padded(n, 2)).bfloat16()

    def random(self, rows: int, n: int) -> Tensor:
        return torch.randn(rows, n, generator=torch.Generator().manual_seed(rows))

    def made(
        self,
        op: str,
        what: str,
        shape: str,
        rows: int,
        work: Work,
        calls: Sequence[NativeCall],
        weights: str,
        parts: Shares,
    ) -> OpCase:
        case = Case(f"{op} {what} {shape}, {rows} rows, {BACKEND}", work, calls, team=NATIVE)
        return OpCase(case, op, what, shape, rows, BACKEND, weights, parts)


def moved(weight: Weight, panels: Tensor, scales: Tensor | None = None) -> Weight:
    """A copy of the weight with other panels and, if it has scales, other scales."""
    copy = Weight.from_buffer_copy(weight)
    copy.data = panels.data_ptr()
    if copy.scale_stride and scales is not None:
        copy.scales = scales.data_ptr()
    return copy
