"""The contract of an op backend: what every backend computes, and which bits must not vary.

Shapes: T rows of the ragged batch (always a multiple of ROW_ALIGN, the tail is padding), C hidden,
H heads, R kv_lora_rank, P qk_rope_head_dim, D = R + P, E experts, K experts per token, I expert width. In
grouped-query attention G is the number of key-value heads and D the width of a head.

**Row invariance.** Row t of every result depends only on row t of the inputs. In attention it also depends on
the cache slots that the row attends to. It does not depend on T, on the other rows, or on how a sequence was
cut into steps. A backend may require that T is a multiple of ROW_ALIGN, and nothing else.

**Columns.** An output of a product has the same bits whichever other outputs are computed, so each of several
devices may compute a part. If `exact_columns` is False, this is not true for every shape, and
`nextn.ops.columns` measures for which shapes it is.

**Weights** of products are plain tensors of the rows' dtype. An argument of type `Weight` can also be in e4m3
blocks.
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
    """The cache slots that each row attends to: those of all positions up to the row's. `nextn.layers.batch`
    has an example.

    Span s is rows cu_rows[s] .. cu_rows[s + 1], those of one request. Its position p is in slot
    table[page_at[s] + p // page_size] * page_size + p % page_size. A row t of a tree has a path from position
    starts[s] on: slots table[cu_paths[t] : cu_paths[t + 1]]. For other rows this range is empty.

    positions, span_of: [T]; starts, page_at: [T], first for the `count` spans, then for the padding rows;
    cu_rows, cu_paths: [T + 1]; table. int32, or int64 for plain torch. longest: maximum number of positions
    that a row attends to. prompts: [T] bool, rows that use naive attention; None: no row does.
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
    computed: dict[Hashable, Any] = field(default_factory=dict)  # by an op, for later layers


class DrawParams(NamedTuple):
    """The inputs of the choices of `rows` consecutive rows, in addition to their penalized logits. The
    position increases by 1 from row to row. `nextn.sampling.sampler` defines the choice."""

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
        """Penalized logits f32, one row per choice, which may be overwritten -> the chosen tokens. NO_TOKEN
        for a row that has a NaN or +infinity, or only -infinity.

        confidence: if given, the lead of each chosen token over the second choice is appended. It includes
        the noise and is multiplied by the temperature, so it is in logits."""


class Columns(Protocol):
    """Columns begin:end of n, which this device computes. Other devices compute the other columns."""

    @property
    def n(self) -> int: ...

    @property
    def begin(self) -> int: ...

    @property
    def end(self) -> int: ...

    def gather(self, whole: Tensor) -> None:
        """whole [rows, n], contiguous, with columns begin:end written: fills in the other columns."""

    def whole(self, part: Tensor) -> Tensor:
        """part [rows, end - begin] -> [rows, n]."""


class Tables(NamedTuple):
    """The tables of a model. embedding: [V, C]. cos, sin: [positions, P / 2] f32."""

    embedding: Tensor
    cos: Tensor
    sin: Tensor


class Mixture(NamedTuple):
    """The arguments of an `Ops.combine` that has not been computed yet."""

    results: Tensor
    weights: Tensor


Addend = Tensor | Mixture  # [T, C] f32


class Routing(NamedTuple):
    """How a router chooses `top_k` experts for each row: see `Ops.route`."""

    groups: int
    top_groups: int
    top_k: int
    normalize: bool
    scale: float
    softmax: bool = False


class Ops(Protocol):
    """The operations of a backend. The module docstring defines the shapes and row invariance."""

    name: str
    exact_columns: bool

    def embed(self, tokens: Tensor, positions: Tensor, tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
        """tokens, positions [T] -> the tokens' embeddings [T, C] f32, and the positions' cos and sin
        [T, P / 2] f32."""

    def embed_beside(
        self, tokens: Tensor, positions: Tensor, tables: Tables, hidden: Tensor, rows: Tensor | None,
        norms: tuple[Tensor, Tensor], eps: float, embedding_first: bool, masks_first: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """The input of a NextN module: embeddings and hidden states side by side, both after their norm.

        hidden: [T, C]; with `rows` [T], hidden[rows] of [N, C]. norms: two of [C] -> [T, 2 * C] in the norms'
        dtype, embeddings first or last, and cos and sin as from `embed`. masks_first: embeddings are 0 at
        position 0."""

    def linear(self, x: Tensor, weight: Weight, dtype: torch.dtype | None = None) -> Tensor:
        """x [T, n_in], weight [n_out, n_in] -> [T, n_out] of this dtype, by default that of x."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm over the last axis. The result has the weight's dtype."""

    def add_norm(
        self, x: Tensor, added: Sequence[Addend], weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Adds to the residual stream: x [T, C] f32 plus each of `added` [T, C] f32 in turn -> (the sum, its
        `rms_norm`). The sum may overwrite x. `added` has at most two elements; the last may be a mixture."""

    def swiglu_mlp(self, x: Tensor, gate_up: Weight, down: Weight, *, inner: Columns | None = None) -> Tensor:
        """x [T, C], gate_up [2 * I, C], down [C, I] -> [T, C] f32.

        inner: gate_up has only the rows of these inner columns, gate's and up's; the inner columns are then
        gathered. In any case down may have only some of its rows."""

    # Rotary embeddings rotate adjacent pairs; cos and sin are [T, P / 2] f32.

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
        """cache [slots, D] <- latent [T, D] at slots [T] (padding rows: slot 0). The first R elements are
        normed with weight [R], the others rotated."""

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
        """Does `write_latent`, and returns the `rms_norm` of the queries' latents."""

    def absorb(self, q: Tensor, key_up: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
        """Queries in the form of cache entries, times scale: q [T, H, N + P], key_up [H, N, R] -> [T, H, D].
        For each head: its first N elements times key_up, then its other elements, rotated."""

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        """Absorbed MLA: q [T, H, D] already scaled; keys are cache entries, values their first `rank`
        columns. Returns [T, H, rank]; rows in `spans.prompts` may have any values."""

    def naive_attention(
        self, q: Tensor, cache: Tensor, spans: Spans, rank: int, key_up: Tensor, value_up: Tensor
    ) -> Tensor:
        """MLA with keys and values expanded: q [T, H, N + P] already scaled, key_up [H, N, R],
        value_up [H, R, V] -> [T, H, V], for the rows in `spans.prompts`, or for all rows if that is None. It
        takes fewer operations for long prompts, and is not row-invariant."""

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
        """Writes keys and values to the cache and returns the queries times scale, [T, H, D].

        qkv [T, (H + 2 * G) * D]: queries, then keys, then values of all heads. The bias is added; each query
        and key is normed over D if it has a norm [D], and its last P elements are rotated. cache
        [slots, G, 2 * D] <- [value | key] of each key-value head, at slots [T] (padding rows: slot 0)."""

    def gqa_attention(self, q: Tensor, cache: Tensor, spans: Spans) -> Tensor:
        """q [T, H, D] already scaled, cache [slots, G, 2 * D] of [value | key]: query head h attends to
        key-value head h // (H / G). Returns [T, H, D]."""

    def heads_matmul(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [T, H, n_in], weight [H, n_in, n_out] -> [T, H, n_out]."""

    def route(self, x: Tensor, router: Tensor, bias: Tensor, by: Routing) -> tuple[Tensor, Tensor]:
        """DeepSeek-V3's router (arXiv 2412.19437, 2.1.2): sigmoid scores; groups ranked by the sum
        of their two best biased scores; top-k by biased score; weights from unbiased scores.
        softmax: DeepSeek-V2's (arXiv 2405.04434, 2.2): softmax scores; groups ranked by their best one.
        x [T, C], router [E, C], bias [E] -> expert ids [T, K] int64, weights [T, K] f32."""

    # Routed experts are computed in three steps: `dispatch`, `experts`, `combine`. Their results are plain
    # tensors, so ranks can send rows to an expert's rank after `dispatch`, and results back before `combine`.

    def fp8_rows(self, x: Tensor) -> Tensor:
        """x [T, C] -> x with each block of 128 inputs rounded to e4m3, with the bits of
        `nextn.ops.fp8_rows.rounded`."""

    def dispatch(self, ids: Tensor, experts: int) -> Any:
        """The rows of each expert, in the form that this backend's `experts` takes. ids [R, K] int64, for the
        first R rows; -1: an expert on another device."""

    def experts(
        self, x: Tensor, runs: Any, gate_up: Weight, down: Weight, *, inner: Columns | None = None
    ) -> Tensor:
        """x [T, C], gate_up [E, 2 * I, C], down [E, C, I], runs from `dispatch` -> [R, K, C], the result of
        each choice's expert. It does not depend on the other choices. For -1, any values. inner: as in
        `swiglu_mlp`, for each expert."""

    def experts_with_shared(
        self,
        x: Tensor,
        runs: Any,
        gate_up: Weight,
        down: Weight,
        shared_gate_up: Weight,
        shared_down: Weight,
    ) -> tuple[Tensor, Tensor]:
        """(`experts`, `swiglu_mlp` of the shared experts). This device computes all inner columns of both."""

    def combine(self, results: Tensor, weights: Tensor) -> Tensor:
        """results [R, K, C], weights [T, K] f32 -> [T, C] f32: each row's results times their weights, summed
        in the order of its ids. Rows from R on are zeros."""

    def best_token(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The token with the largest logit of each row (of equal ones, the smallest id), and its confidence:
        the difference to the second largest. logits [N, V] f32, which may be overwritten -> ids [N] int64,
        confidence [N] f32: +infinity if the second is -infinity, 0 if all are -infinity. With NaN: any id."""

    def best_of_product(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """`best_token` of `linear(x, weight, f32)`, with the same bits, except NO_TOKEN if the best logit is
        infinite or a logit is NaN. A backend need not write the logits to memory."""

    def uniforms(
        self, seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int
    ) -> Tensor:
        """`nextn.ops.philox.uniforms` with use 0, with the same bits: arguments [N] int64 -> [N, count] f64.
        count: a multiple of 4."""
