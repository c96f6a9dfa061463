"""Cases for the clock: every op of a backend at the shapes of a model, called through nextn.ops.base.Ops.

Weights and KV entries come from an arena larger than the last cache, and each call uses another piece of it.
So they are read from memory, as in an engine, where other layers run between two uses. Inputs and results are
small and stay in the cache, as in an engine. Rows are padded to the multiple that the backends need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.bench.dev.micro import op_work
from nextn.bench.dev.micro.arena import Arena
from nextn.bench.dev.micro.arithmetic import Shares, of_torch
from nextn.bench.dev.micro.attention_cost import attention_cost
from nextn.bench.dev.micro.clock import Case
from nextn.bench.dev.micro.op_work import Work
from nextn.bench.dev.micro.routing import Routing
from nextn.families.config import GqaAttention, ModelConfig
from nextn.layers.batch import Span, build_batch
from nextn.layers.mlp import routing_of
from nextn.ops.base import Ops, Spans, Tables, align

LINEAR = (4096, 2048)  # (n_out, n_in) of the headline product
HEADLINE = "headline"
ROUTED = "router and routed experts"
ROWS = (1, 4, 8, 16, 32, 64, 256)
CONTEXT = 1024  # positions that attention sees, at most; fewer if the model's context is shorter
PAGE = 16


@dataclass(frozen=True)
class OpCase:
    """One op at one shape and number of rows. op: a method of nextn.ops.base.Ops, or `feed_forward` (route
    and experts). what: the use of the op in the model. weights: the format of its weights, the name of a
    dtype or of few-bit codes. shares: shares of the operations by arithmetic."""

    case: Case
    op: str
    what: str
    shape: str
    rows: int
    backend: str
    weights: str
    shares: Shares


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def product_uses(cfg: ModelConfig) -> Iterator[tuple[str, int, int]]:
    """(what, n_out, n_in) of the model's linear products."""
    hidden, queries = cfg.hidden_size, cfg.num_attention_heads * cfg.qk_head_dim
    if cfg.gqa is not None:
        yield "queries, keys, values", queries + 2 * cfg.gqa.num_key_value_heads * cfg.gqa.head_dim, hidden
    else:
        yield "attention down", (cfg.q_lora_rank or queries) + cfg.latent_dim, hidden
        if cfg.q_lora_rank:
            yield "query up", queries, cfg.q_lora_rank
    yield "attention out", hidden, cfg.num_attention_heads * cfg.v_head_dim
    yield "head", cfg.vocab_size, hidden
    if cfg.num_nextn_predict_layers:
        yield "eh_proj", hidden, 2 * hidden


@dataclass(frozen=True)
class Bench:
    """The cases of one backend in one dtype. end: positions in the cache that attention sees."""

    ops: Ops
    cfg: ModelConfig
    dtype: torch.dtype
    arena: Arena
    end: int

    def cases(self, counts: Sequence[int] = ROWS) -> list[OpCase]:
        """Makes a case for every op, use and number of rows. An op with several uses has one shape for each
        use."""
        latent = (self.latent_row_ops, self.attention, self.head_products)
        own = latent if self.cfg.gqa is None else (partial(self.grouped_attention, self.cfg.gqa),)
        makers = (self.linears, self.embeddings, self.residual, *own, self.feed_forward, self.choice)
        found = [one for make in makers for rows in counts for one in make(rows)]
        order = {use: i for i, use in enumerate(dict.fromkeys((one.op, one.what) for one in found))}
        return sorted(found, key=lambda one: order[one.op, one.what])

    def headline(self, counts: Sequence[int] = ROWS) -> list[OpCase]:
        """Cases of the headline product, which is compared across machines and backends."""
        return [self.linear(rows, HEADLINE, *LINEAR) for rows in counts]

    def linears(self, rows: int) -> Iterator[OpCase]:
        for what, n_out, n_in in product_uses(self.cfg):
            yield self.linear(rows, what, n_out, n_in)

    def linear(self, rows: int, what: str, n_out: int, n_in: int) -> OpCase:
        x = self.input(rows, n_in)
        calls = [partial(self.ops.linear, x, w) for (w,) in self.weights((n_out, n_in))]
        work = op_work.linear(rows, n_out, n_in, self.size)
        return self.made("linear", what, f"{n_out}x{n_in}", rows, work, calls)

    def embeddings(self, rows: int) -> Iterator[OpCase]:
        """The first op of a pass of the target, and of a pass of the NextN module."""
        cfg, ops, hidden = self.cfg, self.ops, self.cfg.hidden_size
        half = cfg.qk_rope_head_dim // 2
        tokens = torch.arange(align(rows)) % cfg.vocab_size
        positions = torch.arange(align(rows)) % self.end
        cos, sin = (torch.rand(self.end, half) for _ in range(2))
        tables = [Tables(weight, cos, sin) for (weight,) in self.weights((cfg.vocab_size, hidden))]
        calls = [partial(ops.embed, tokens, positions, each) for each in tables]
        work = op_work.embed(rows, hidden, half, self.size)
        yield self.made("embed", "target", f"{hidden}", rows, work, calls)
        if not cfg.num_nextn_predict_layers:
            return
        norms = torch.ones(2, hidden, dtype=self.dtype)
        rest = self.input(rows, hidden), None, (norms[0], norms[1]), 1e-6, True, False
        calls = [partial(ops.embed_beside, tokens, positions, each, *rest) for each in tables]
        work = op_work.embed_beside(rows, hidden, half, self.size)
        yield self.made("embed_beside", "NextN", f"{hidden}", rows, work, calls)

    def residual(self, rows: int) -> Iterator[OpCase]:
        hidden = self.cfg.hidden_size
        x, added = self.input(rows, hidden).float(), (torch.zeros(align(rows), hidden),)
        sums = [partial(self.ops.add_norm, x, added, w, 1e-6) for (w,) in self.weights((hidden,))]
        work = op_work.add_norm(rows, hidden, self.size)
        yield self.made("add_norm", "residual", f"{hidden}", rows, work, sums)

    def grouped_attention(self, gqa: GqaAttention, rows: int) -> Iterator[OpCase]:
        """The ops between the products of grouped-query attention, for one request as in `attention`."""
        cfg, ops, end, width, size = self.cfg, self.ops, self.end, gqa.head_dim, self.size
        heads, groups, rotary = cfg.num_attention_heads, gqa.num_key_value_heads, cfg.qk_rope_head_dim
        caches = [cache.view(len(cache), groups, 2 * width) for cache in self.caches()]
        qkv, slots = self.input(rows, (heads + 2 * groups) * width), torch.arange(align(rows))
        cos, sin = (torch.rand(align(rows), rotary // 2) for _ in range(2))
        writes = [
            partial(ops.write_kv, cache, slots, qkv, None, None, None, 1e-6, cos, sin, 0.1)
            for cache in caches
        ]
        work = op_work.write_kv(rows, heads, groups, width, rotary, size)
        shape = f"{heads}+2x{groups}x{width}"
        yield self.made("write_kv", "entries", shape, rows, work, writes)
        if rows > end:
            return
        q, spans = self.input(rows, heads, width), self.spans(rows)
        calls = [partial(ops.gqa_attention, q, cache, spans) for cache in caches]
        work = op_work.gqa_attention(rows, end, heads, groups, width, size)
        shape = f"{heads} of {groups}x{width}, {end} keys"
        yield self.made("gqa_attention", "one request", shape, rows, work, calls)

    def latent_row_ops(self, rows: int) -> Iterator[OpCase]:
        cfg, ops, size = self.cfg, self.ops, self.size
        rank, rope = cfg.kv_lora_rank, cfg.qk_rope_head_dim
        width = cfg.q_lora_rank or rank
        x = self.input(rows, width)
        norms = [partial(ops.rms_norm, x, w, 1e-6) for (w,) in self.weights((width,))]
        yield self.made("rms_norm", "latent", f"{width}", rows, op_work.rms_norm(rows, width, size), norms)
        cos, sin = (torch.rand(align(rows), rope // 2) for _ in range(2))
        slots, latent = torch.arange(align(rows)), self.input(rows, cfg.latent_dim)
        weights = self.weights((rank,))
        entries = [
            (cache, slots, latent, weights[i % len(weights)][0], 1e-6, cos, sin)
            for i, cache in enumerate(self.caches())
        ]
        writes = [partial(ops.write_latent, *one) for one in entries]
        work = op_work.write_latent(rows, rank, rope, size)
        yield self.made("write_latent", "entries", f"{cfg.latent_dim}", rows, work, writes)
        query, (query_weight,) = self.input(rows, width), self.weights((width,))[0]
        both = [partial(ops.norm_latents, *one, query, query_weight) for one in entries]
        work = work + op_work.rms_norm(rows, width, size)
        yield self.made("norm_latents", "latents", f"{cfg.latent_dim}, {width}", rows, work, both)

    def attention(self, rows: int) -> Iterator[OpCase]:
        """Attention of one request that extends by `rows`, up to position `end`."""
        cfg, ops, end = self.cfg, self.ops, self.end
        if rows > end:
            return
        heads, rank, rope = cfg.num_attention_heads, cfg.kv_lora_rank, cfg.qk_rope_head_dim
        nope, value = cfg.qk_nope_head_dim, cfg.v_head_dim
        spans = self.spans(rows)
        shape = f"{heads}x{cfg.latent_dim}, {end} keys"
        q = self.input(rows, heads, cfg.latent_dim)
        calls = [partial(ops.mla_attention, q, cache, spans, rank) for cache in self.caches()]
        work = op_work.mla_attention(rows, end, heads, rank, rope, self.size)
        yield self.made("mla_attention", "one request", shape, rows, work, calls)
        q = self.input(rows, heads, nope + rope)
        ups = self.weights((heads, nope, rank), (heads, rank, value))
        calls = [
            partial(ops.naive_attention, q, cache, spans, rank, *ups[i % len(ups)])
            for i, cache in enumerate(self.caches())
        ]
        work = op_work.naive_attention(rows, end, heads, rank, nope, rope, value, self.size)
        yield self.made("naive_attention", "one request", shape, rows, work, calls)

    def head_products(self, rows: int) -> Iterator[OpCase]:
        cfg, heads, size = self.cfg, self.cfg.num_attention_heads, self.size
        nope, rank, rope, value = cfg.qk_nope_head_dim, cfg.kv_lora_rank, cfg.qk_rope_head_dim, cfg.v_head_dim
        q = self.input(rows, heads, nope + rope)
        cos, sin = (torch.rand(align(rows), rope // 2) for _ in range(2))
        calls = [partial(self.ops.absorb, q, w, cos, sin, 0.1) for (w,) in self.weights((heads, nope, rank))]
        work = op_work.absorb(rows, heads, nope, rank, rope, size)
        yield self.made("absorb", "queries", f"{heads}x{nope}x{rank}", rows, work, calls)
        x = self.input(rows, heads, rank)
        calls = [partial(self.ops.heads_matmul, x, w) for (w,) in self.weights((heads, rank, value))]
        work = op_work.heads_matmul(rows, heads, rank, value, size)
        yield self.made("heads_matmul", "value up", f"{heads}x{rank}x{value}", rows, work, calls)

    def feed_forward(self, rows: int) -> Iterator[OpCase]:
        cfg, hidden = self.cfg, self.cfg.hidden_size
        if cfg.first_k_dense_replace:
            yield self.mlp(rows, "dense", cfg.intermediate_size)
        if not cfg.n_routed_experts:
            return
        if cfg.n_shared_experts:
            yield self.mlp(rows, "shared expert", cfg.n_shared_experts * cfg.moe_intermediate_size)
        yield self.route(rows)
        yield self.fp8_rows(rows)
        ops, count, inner, top_k = (
            self.ops,
            cfg.n_routed_experts,
            cfg.moe_intermediate_size,
            cfg.num_experts_per_tok,
        )
        x = self.input(rows, hidden)
        chances = torch.rand(align(rows), count, generator=torch.Generator().manual_seed(rows))
        ids, weights = chances.topk(top_k).indices, torch.full((align(rows), top_k), 1 / top_k)
        sets = self.weights((count, 2 * inner, hidden), (count, hidden, inner))
        chosen = ids[:rows]
        work = op_work.dispatch(rows, top_k)
        dispatched = [partial(ops.dispatch, chosen, count)]
        yield self.made("dispatch", "routed", f"{top_k} of {count}", rows, work, dispatched)
        runs = ops.dispatch(chosen, count)
        calls = [partial(ops.experts, x, runs, *pair) for pair in sets]
        distinct = len(ids[:rows].unique())
        work = op_work.experts(rows, hidden, inner, top_k, distinct, self.size)
        shape = f"{distinct} of {count} {hidden}x{inner}"
        yield self.made("experts", "routed", shape, rows, work, calls)
        sets = self.weights((count + 1, 2 * inner, hidden), (count + 1, hidden, inner))
        both = [partial(ops.experts_with_shared, x, runs, a[1:], b[1:], a[0], b[0]) for a, b in sets]
        work = work + op_work.swiglu_mlp(rows, hidden, inner, self.size)
        yield self.made("experts_with_shared", "routed and shared", shape, rows, work, both)
        results = self.input(rows * top_k, hidden)[: rows * top_k].view(rows, top_k, hidden)
        sums = [partial(ops.combine, results, weights)]
        work = op_work.combine(rows, hidden, top_k, self.size)
        yield self.made("combine", "routed", f"{top_k} x {hidden}", rows, work, sums)
        yield self.routed(rows)

    def routed(self, rows: int) -> OpCase:
        """The router and its experts. Each pass over the arena has other input rows and so other experts."""
        cfg, ops = self.cfg, self.ops
        count, inner, hidden = cfg.n_routed_experts, cfg.moe_intermediate_size, cfg.hidden_size
        routing, bias, by = Routing(cfg, rows), torch.zeros(count), routing_of(cfg)
        sets = self.weights((count, 2 * inner, hidden), (count, hidden, inner))
        routers = [routing.router.clone() for _ in sets]

        def block(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
            ids, weights = ops.route(x, router, bias, by)
            runs = ops.dispatch(ids[:rows], count)
            return ops.combine(ops.experts(x, runs, gate_up, down), weights)

        work = routing.work(3 * inner * hidden * self.size, self.size)
        inputs = [F.pad(x, (0, 0, 0, align(rows) - rows)).to(self.dtype) for x in routing.inputs]
        calls = [
            partial(block, x, router, *pair)
            for x in inputs
            for router, pair in zip(routers, sets, strict=True)
        ]
        return self.made("feed_forward", ROUTED, routing.shape, rows, work, calls)

    def mlp(self, rows: int, what: str, inner: int) -> OpCase:
        hidden = self.cfg.hidden_size
        x = self.input(rows, hidden)
        sets = self.weights((2 * inner, hidden), (hidden, inner))
        calls = [partial(self.ops.swiglu_mlp, x, *pair) for pair in sets]
        work = op_work.swiglu_mlp(rows, hidden, inner, self.size)
        return self.made("swiglu_mlp", what, f"{hidden}x{inner}", rows, work, calls)

    def fp8_rows(self, rows: int) -> OpCase:
        hidden = self.cfg.hidden_size
        calls = [partial(self.ops.fp8_rows, self.input(rows, hidden))]
        work = op_work.fp8_rows(rows, hidden, self.size)
        return self.made("fp8_rows", "rows of experts", f"{hidden}", rows, work, calls)

    def route(self, rows: int) -> OpCase:
        cfg, count, hidden = self.cfg, self.cfg.n_routed_experts, self.cfg.hidden_size
        x, bias = self.input(rows, hidden), torch.zeros(count)
        routers = self.arena.sets(torch.float32, (count, hidden))
        calls = [partial(self.ops.route, x, router, bias, routing_of(cfg)) for (router,) in routers]
        work = op_work.route(rows, hidden, count, cfg.num_experts_per_tok, self.size)
        return self.made(
            "route", f"{cfg.num_experts_per_tok} of {count}", f"{count}x{hidden}", rows, work, calls
        )

    def choice(self, rows: int) -> Iterator[OpCase]:
        """The ops of the choice of tokens. Their logits are in the cache, as after a step."""
        vocab = self.cfg.vocab_size
        logits = torch.randn(rows, vocab, generator=torch.Generator().manual_seed(rows))
        calls = [partial(self.ops.best_token, logits)]
        yield self.made("best_token", "drafts", f"{vocab}", rows, op_work.best_token(rows, vocab), calls)
        hidden = self.cfg.hidden_size
        x, sets = self.input(rows, hidden), self.weights((vocab, hidden))
        work = op_work.best_of_product(rows, vocab, hidden, self.size)
        products = [partial(self.ops.best_of_product, x, w) for (w,) in sets]
        yield self.made("best_of_product", "drafts", f"{vocab}x{hidden}", rows, work, products)
        words, count = torch.arange(rows), align(vocab, 16)
        draws = [partial(self.ops.uniforms, words, words, words, words, count)]
        yield self.made("uniforms", "noise", f"{count}", rows, op_work.uniforms(rows, count), draws)

    @property
    def size(self) -> int:
        return self.dtype.itemsize

    def input(self, rows: int, *shape: int) -> Tensor:
        gen = torch.Generator().manual_seed(rows)
        return torch.randn(align(rows), *shape, generator=gen).to(self.dtype)

    def weights(self, *shapes: tuple[int, ...]) -> list[list[Tensor]]:
        return self.arena.sets(self.dtype, *shapes)

    def caches(self) -> list[Tensor]:
        """Layers of a KV pool with room for `end` positions and page 0."""
        slots = align(self.end, PAGE) + max(PAGE, max(ROWS))
        return [cache for (cache,) in self.weights((slots, attention_cost(self.cfg).entry))]

    def spans(self, rows: int) -> Spans:
        pages = range(1, 1 + align(self.end, PAGE) // PAGE)
        span = Span([0] * rows, self.end - rows, list(pages))
        return build_batch([span], PAGE, torch.device("cpu")).attention

    def made(
        self, op: str, what: str, shape: str, rows: int, work: Work, calls: Sequence[Callable[[], object]]
    ) -> OpCase:
        name = f"{op} {what} {shape}, {rows} rows, {self.ops.name}"
        parts = {of_torch(self.dtype): 1.0}
        case = Case(name, work, calls)
        return OpCase(case, op, what, shape, rows, self.ops.name, dtype_name(self.dtype), parts)
