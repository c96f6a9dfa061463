"""The contract of an op backend: what every backend computes, and to the bit.

Shapes: T rows of the ragged batch (always a multiple of ROW_ALIGN, the tail is padding), C hidden,
H heads, R kv_lora_rank, P qk_rope_head_dim, D = R + P, E experts, K experts per token, I expert width. In
grouped-query attention G key-value heads and D the width of a head.

**Row invariance.** Row t of every result is a function of row t of the inputs (and, in attention, of
the cache slots it may see) and of nothing else: not of T, not of the other rows, not of how a
sequence was cut into steps. A backend may ask that T is a multiple of ROW_ALIGN; it may not ask more.

**Columns.** An output of a product has the same bits whichever others are computed beside it, so several
devices may compute some each. Where `exact_columns` is False that is not so for every shape, and
`nextn.ops.columns` measures for which.

**Weights** of products are plain tensors of the rows' dtype; where the type says so, e4m3 blocks as well.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from nextn.ops.fp8 import Weight

ROW_ALIGN = 8  # rows of a batch come in multiples of this
KV_BLOCK = 256  # attention sums over keys in absolute blocks of this many positions


def align(n: int, to: int = ROW_ALIGN) -> int:
    """Smallest multiple of `to` that is >= n. align(9) == 16, align(0) == 0."""
    return -(-n // to) * to


@dataclass(frozen=True, slots=True)
class Spans:
    """Which cache slots each row sees: those of all positions up to its own. Example: `nextn.layers.batch`.

    Span s is rows cu_rows[s] .. cu_rows[s + 1], those of one request. Its position p lies in slot
    table[page_at[s] + p // page_size] * page_size + p % page_size. For a row t of a tree its path begins at
    starts[s]: its slots, from that position on, are table[cu_paths[t] : cu_paths[t + 1]]; else that is empty.

    positions, span_of: [T]; starts, page_at: [T], of `count` spans, then of the padding rows;
    cu_rows, cu_paths: [T + 1]; table. int32, or int64 for plain torch. longest: no row sees more positions.
    prompts: [T] bool, rows that go the naive way; None: there are none.
    """

    count: int
    positions: Tensor
    span_of: Tensor
    starts: Tensor
    page_at: Tensor
    cu_rows: Tensor
    cu_paths: Tensor
    table: Tensor
    page_size: int
    longest: int
    prompts: Tensor | None = None
    kept: dict[Hashable, Any] = field(default_factory=dict)  # what an op derived from it, for the next layers


class DrawParams(NamedTuple):
    """What choices depend on besides their penalized logits: those of `rows` rows, one after another, whose
    positions count up. See nextn.sampling.sampler for the choice itself."""

    seed: int
    stream: int
    position: int  # of the first token to choose
    temperature: float
    top_p: float
    min_p: float
    top_k: int
    rows: int = 1


NO_TOKEN = -1


class Draw(Protocol):
    def __call__(
        self, logits: Tensor, draws: Sequence[DrawParams], confidence: list[float] | None = None
    ) -> list[int]:
        """Penalized logits f32, which may be written over, a row for each choice -> the tokens chosen;
        NO_TOKEN of a row that has a NaN or +infinity, or nothing but -infinity.

        confidence: if given, gets by how much each was ahead of what would have been chosen without it, in
        logits: noise included, and times the temperature."""


class Columns(Protocol):
    """The part begin:end of n columns, which this device computes; others compute the others."""

    @property
    def n(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    def gather(self, whole: Tensor) -> None:
        """whole [rows, n], contiguous, columns begin:end written: fills in the others."""

    def whole(self, part: Tensor) -> Tensor:
        """part [rows, end - begin] -> [rows, n]."""


class Tables(NamedTuple):
    """What a pass looks up. embedding: [V, C]. cos, sin: [positions, P / 2] f32."""

    embedding: Tensor
    cos: Tensor
    sin: Tensor


class Mixture(NamedTuple):
    """What `Ops.combine` makes of these, not made yet."""

    results: Tensor
    weights: Tensor


Addend = Tensor | Mixture  # [T, C] f32


class Routing(NamedTuple):
    """How a router chooses `top_k` experts of each row: see `Ops.route`."""

    groups: int
    top_groups: int
    top_k: int
    normalize: bool
    scale: float
    softmax: bool = False


class Ops(Protocol):
    """See the module docstring for the shapes and for what row invariance asks."""

    name: str
    exact_columns: bool

    def embed(self, tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """tokens, positions [T] -> the tokens' embeddings [T, C] f32, and the positions' cos and sin
        [T, P / 2] f32."""

    def embed_beside(
        self, tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
        norms: tuple[Tensor, Tensor], eps: float, embedding_first: bool, masks_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """Embeddings, and hidden [T, C], or, with `rows` [T], these of hidden [N, C]; each normed, by norms
        [C] -> both side by side [T, 2 * C], embeddings first or last, of the norms' dtype; and cos and sin as
        `embed` has them. masks_first: embeddings are 0 at position 0."""

    def linear(self, x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        """x [T, n_in], weight [n_out, n_in] -> [T, n_out] of this dtype, by default that of x."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Over the last axis; the result has the weight's dtype."""

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """The residual stream and its norm: x [T, C] f32, each of `added` [T, C] f32 added to it in turn ->
        (the sum, which may lie where x lay, its `rms_norm`). At most two are added, of which the last may be
        a mixture."""

    def swiglu_mlp(self, x: Tensor, gate_up: Weight, down: Weight, *, inner: Columns | None = None) -> Tensor:
        """x [T, C], gate_up [2 * I, C], down [C, I] -> [T, C] f32.

        inner: gate_up has the rows of these of the I inner columns only, gate's and up's; what they give is
        gathered. down may have some of its rows only, with or without that."""

    # Rotary embeddings turn adjacent pairs; cos and sin [T, P / 2] f32.

    def write_latent(
        self,
        cache: Tensor,
        slots: Tensor,
        latent: Tensor,
        weight: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
    ) -> None:
        """cache [slots, D] <- latent [T, D] at slots [T] (padding rows: slot 0), the first R elements normed
        with weight [R], the others rotated."""

    def norm_latents(
        self,
        cache: Tensor,
        slots: Tensor,
        latent: Tensor,
        weight: Tensor,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        query: Tensor,
        query_weight: Tensor,
    ) -> Tensor:
        """`write_latent`, and the `rms_norm` of the queries' latents."""

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        """Queries in the form that meets the cache: q [T, H, N + P], key_up [H, N, R] -> [T, H, D], of each
        head its first N elements times key_up, then the others rotated, all of it times scale."""

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        """Absorbed MLA: q [T, H, D] already scaled; keys are cache entries, values their first
        `rank` columns. Returns [T, H, rank]; what `spans.prompts` has may be anything."""

    def naive_attention(
        self, q: Tensor, cache: Tensor, spans: Spans, rank: int, key_up: Tensor, value_up: Tensor
    ) -> Tensor:
        """MLA with keys and values expanded: q [T, H, N + P] already scaled, key_up [H, N, R],
        value_up [H, R, V] -> [T, H, V], of the rows in `spans.prompts`, or of all where that is None. Fewer
        operations for long prompts; not row-invariant."""

    def write_kv(
        self,
        cache: Tensor,
        slots: Tensor,
        qkv: Tensor,
        bias: Tensor | None,
        q_norm: Tensor | None,
        k_norm: Tensor | None,
        eps: float,
        cos: Tensor,
        sin: Tensor,
        scale: float,
    ) -> Tensor:
        """qkv [T, (H + 2 * G) * D], queries, then keys, then values of all heads, and their bias: added; each
        query and key normed over D, where it has a norm [D], and its last P elements rotated.
        cache [slots, G, 2 * D] <- of each head [value | key] at slots [T] (padding rows: slot 0). Returns the
        queries times scale, [T, H, D]."""

    def gqa_attention(self, q: Tensor, cache: Tensor, spans: Spans) -> Tensor:
        """q [T, H, D] already scaled, cache [slots, G, 2 * D] of [value | key]: query head h meets key-value
        head h // (H / G). Returns [T, H, D]."""

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, H, n_in], weight [H, n_in, n_out] -> [T, H, n_out]."""

    def route(self, x: Tensor, router: Tensor, bias: Tensor, by: Routing) -> tuple[Tensor, Tensor]:
        """DeepSeek-V3's router (arXiv 2412.19437, 2.1.2): sigmoid scores; groups ranked by the sum
        of their two best biased scores; top-k by biased score; weights from unbiased scores.
        softmax: DeepSeek-V2's (arXiv 2405.04434, 2.2): softmax scores; groups ranked by their best one.
        x [T, C], router [E, C], bias [E] -> expert ids [T, K] int64, weights [T, K] f32."""

    # Routed experts in three steps. What lies between them is plain: rows may be sent to where an expert is
    # after the first, and their results sent back before the last.

    def fp8_rows(self, x: Tensor) -> Tensor:
        """x [T, C] -> the same, each 128 inputs rounded to e4m3: `nextn.ops.fp8_rows.rounded`, to the bit."""

    def dispatch(self, ids: Tensor, experts: int) -> Any:
        """Which rows each expert gets, as this backend's `experts` wants it. ids [R, K] int64, of the first R
        rows; -1: an expert that is elsewhere."""

    def experts(
        self, x: Tensor, runs: Any, gate_up: Weight, down: Weight, *, inner: Columns | None = None
    ) -> Tensor:
        """x [T, C], gate_up [E, 2 * I, C], down [E, C, I], `dispatch`'s runs -> [R, K, C], of each choice its
        expert's result, which does not depend on the other choices; of -1 anything. inner: as in
        `swiglu_mlp`, of each expert."""

    def experts_with_shared(
        self,
        x: Tensor,
        runs: Any,
        gate_up: Weight,
        down: Weight,
        shared_gate_up: Weight,
        shared_down: Weight,
    ) -> tuple[Tensor, Tensor]:
        """`experts`, and `swiglu_mlp` of the shared experts; no columns of either are elsewhere."""

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        """results [R, K, C], weights [T, K] f32 -> [T, C] f32: of each row its results times their weights,
        summed in the order of its ids; zeros from row R on."""

    def best_token(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The largest of each row, of equal ones that with the smallest id, and its confidence: by how much
        it is above the next one. logits [N, V] f32, which may be written over -> ids [N] int64, confidence
        [N] f32, +infinity above -infinity, 0 where all are -infinity. Where a logit is NaN: any id."""

    def best_of_product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`best_token` of `linear(x, weight, f32)`, to the bit, but NO_TOKEN where the best logit is infinite
        or one is NaN. Logits need not be written to memory."""

    def uniforms(
        self, seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int
    ) -> Tensor:
        """`nextn.ops.philox.uniforms` of use 0, to the bit: each [N] int64 -> [N, count] f64. count: a
        multiple of 4."""
