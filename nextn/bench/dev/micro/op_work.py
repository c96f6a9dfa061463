"""The bytes that an op must move and its operations, independent of the backend. Pure functions.

Letters as in nextn.ops.base. Rows are the batch's real rows, without padding. `size`: bytes of an element.
Bytes are weights read once, inputs read, and results written. Operations are those of the products (a
multiply-add counts as two) or, if an op has no products, those of its other arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    bytes: int
    flops: int

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)


def linear(rows: int, n_out: int, n_in: int, size: int) -> Work:
    return Work(size * (n_out * n_in + rows * (n_in + n_out)), 2 * rows * n_out * n_in)


def packed_linear(rows: int, n_out: int, n_in: int, stored: int, size: int) -> Work:
    """stored: bytes of the weight as it is stored, scales included. size: bytes of an element of the rows."""
    return Work(stored + size * rows * (n_in + n_out), 2 * rows * n_out * n_in)


def rms_norm(rows: int, width: int, size: int) -> Work:
    """Per element: square, add, two multiplications."""
    return Work(size * (2 * rows * width + width), 4 * rows * width)


def embed(rows: int, width: int, half: int, size: int) -> Work:
    """Embeddings read and written as f32; cos and sin read and written; a token and a position, int64."""
    return Work(rows * (size * width + 4 * width + 16 * half + 16), 0)


def embed_beside(rows: int, width: int, half: int, size: int) -> Work:
    """Embeddings and hidden states read, normed, and written side by side; the rest as in `embed`."""
    norm = rms_norm(rows, width, size)
    return Work(2 * norm.bytes + rows * (16 * half + 16), 2 * norm.flops)


def add_norm(rows: int, width: int, size: int) -> Work:
    """Like `rms_norm`, but the residual stream and the tensor added to it are f32. One more addition per
    element."""
    norm = rms_norm(rows, width, size)
    return Work(norm.bytes - size * rows * width + 12 * rows * width, norm.flops + rows * width)


def rotate(rows: int, heads: int, dim: int, size: int) -> Work:
    """Per pair four multiplications and two additions; cos and sin are f32, [rows, dim / 2] each."""
    return Work(2 * size * rows * heads * dim + 4 * rows * dim, 3 * rows * heads * dim)


def swiglu_mlp(rows: int, hidden: int, inner: int, size: int) -> Work:
    return packed_mlp(rows, hidden, inner, size * 3 * hidden * inner, size)


def packed_mlp(rows: int, hidden: int, inner: int, stored: int, size: int) -> Work:
    """stored: bytes of the three weights as they are stored. size: bytes of an element of the rows."""
    return Work(stored + size * 2 * rows * hidden, 6 * rows * hidden * inner)


def write_latent(rows: int, rank: int, rope: int, size: int) -> Work:
    """Entries read, normed (`rank` elements) and rotated, written; slots (int64) read."""
    norm, turn = rms_norm(rows, rank, size), rotate(rows, 1, rope, size)
    return Work(norm.bytes + turn.bytes + 8 * rows, norm.flops + turn.flops)


def absorb(rows: int, heads: int, nope: int, rank: int, rope: int, size: int) -> Work:
    return heads_matmul(rows, heads, nope, rank, size) + rotate(rows, heads, rope, size)


def pairs(rows: int, end: int) -> int:
    """Number of (query, key) pairs of the last `rows` of `end` positions. Each sees itself and all before it.

    >>> pairs(2, 5)  # positions 3 and 4 see 4 and 5 keys
    9
    """
    return rows * end - rows * (rows - 1) // 2


def mla_attention(rows: int, end: int, heads: int, rank: int, rope: int, size: int) -> Work:
    """One request's last `rows` of `end` positions; the cache is read once."""
    width = rank + rope
    moved = end * width + rows * heads * (width + rank)
    return Work(size * moved, 2 * pairs(rows, end) * heads * (width + rank))


def gqa_attention(rows: int, end: int, heads: int, kv_heads: int, width: int, size: int) -> Work:
    """Like `mla_attention`, with `kv_heads` heads of keys and values, each `width` wide."""
    moved = 2 * width * (end * kv_heads + rows * heads)
    return Work(size * moved, 4 * pairs(rows, end) * heads * width)


def write_kv(rows: int, heads: int, kv_heads: int, width: int, rotary: int, size: int) -> Work:
    """Queries, keys and values read, queries and entries written, queries and keys rotated; slots (int64)
    read. Norms and biases, which only few families have, are not counted."""
    turn = rotate(rows, heads + kv_heads, rotary, size)
    unturned = 2 * size * rows * ((heads + 2 * kv_heads) * width - (heads + kv_heads) * rotary)
    return Work(turn.bytes + unturned + 8 * rows, turn.flops)


def naive_attention(
    rows: int, end: int, heads: int, rank: int, nope: int, rope: int, value: int, size: int
) -> Work:
    """Like `mla_attention`, with expanded keys and values. The expanded ones can stay in the CPU's cache, so
    they are not counted."""
    up = heads * rank * (nope + value)
    moved = end * (rank + rope) + up + rows * heads * (nope + rope + value)
    return Work(size * moved, 2 * end * up + 2 * pairs(rows, end) * heads * (nope + rope + value))


def heads_matmul(rows: int, heads: int, n_in: int, n_out: int, size: int) -> Work:
    moved = heads * n_in * n_out + rows * heads * (n_in + n_out)
    return Work(size * moved, 2 * rows * heads * n_in * n_out)


def route(rows: int, hidden: int, experts: int, top_k: int, size: int) -> Work:
    """The router's weights and bias are f32; an id is int64, its weight f32."""
    moved = 4 * experts * (hidden + 1) + size * rows * hidden + 12 * rows * top_k
    return Work(moved, 2 * rows * hidden * experts)


def best_token(rows: int, vocab: int) -> Work:
    """Logits are f32; an id is int64, its confidence f32. Two comparisons for each logit."""
    return Work(rows * (4 * vocab + 12), 2 * rows * vocab)


def best_of_product(rows: int, vocab: int, hidden: int, size: int) -> Work:
    """The logits are not written; an id is int64, its confidence and its logit f32."""
    return Work(size * hidden * (vocab + rows) + 16 * rows, 2 * rows * vocab * hidden)


def uniforms(rows: int, count: int) -> Work:
    """f64 numbers written. Every four of them take ten rounds of two products and four exclusive ors."""
    return Work(rows * (8 * count + 32), 15 * rows * count)


def fp8_rows(rows: int, width: int, size: int) -> Work:
    """Rows are read and written. A comparison, two products and a rounding for each input."""
    return Work(2 * rows * width * size, 4 * rows * width)


def dispatch(rows: int, top_k: int) -> Work:
    """An id is int64, and so is its row's index."""
    return Work(16 * rows * top_k, 0)


def combine(rows: int, hidden: int, top_k: int, size: int) -> Work:
    """A row's results are read; their weights and their sum are f32."""
    return Work(rows * (size * top_k * hidden + 4 * top_k + 4 * hidden), 2 * rows * top_k * hidden)


def experts(rows: int, hidden: int, inner: int, top_k: int, distinct: float, size: int) -> Work:
    """`distinct`: number of experts that at least one row uses; it can be a mean. The weights of each are
    read once."""
    return packed_experts(rows, hidden, inner, top_k, distinct, size * 3 * hidden * inner, size)


def packed_experts(
    rows: int, hidden: int, inner: int, top_k: int, distinct: float, stored: int, size: int
) -> Work:
    """stored: bytes of an expert's weights as they are stored. size: bytes of an element of the rows."""
    moved = round(distinct * stored + size * 2 * rows * hidden) + 12 * rows * top_k
    return Work(moved, 6 * rows * top_k * hidden * inner)
