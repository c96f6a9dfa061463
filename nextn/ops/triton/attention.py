"""Absorbed MLA (arXiv 2405.04434) over the paged cache, with nothing gathered: a program is one tile of a
span's queries, over all its rows and heads, and one part of the keys they see, which it reads once for all of
them.

A query is one head of one row; those of a span count up row by row, `M` to a tile. A part is PART positions,
counted from the sequence's beginning, gone through in blocks of KEYS with the running maximum and sum of
FlashAttention (arXiv 2205.14135); parts are put together in their order, as in FlashMLA's and FlashDecoding's
split keys. Both orders follow from the positions alone, tiles have one shape in all batches, and a block in
which a query sees nothing leaves its sums as they are. So a row has the same bits whether it came with a
prompt, alone or amid a tree, and however long the others are. Scores, maxima, sums and what is summed are
f32; probabilities are brought to the cache's dtype to be multiplied with it.

Rows of a tree see the same keys up to the tree's root, and keys of their own from there on. A key's place in
its block is its position, which may be another slot for each row; so the blocks from the root on are gone
through once for each row of the tile, with the other rows' queries seeing nothing.

The grid has a program for each row and as many tiles as a row alone may need: how the rows are cut into spans
is known on the device alone, and programs without a tile end at once.

Shapes: T rows, H heads, R kv_lora_rank, P rope width, D = R + P.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Spans

PART = 512


@triton.jit
def _attend(
    q, cache, out, sums, positions, span_of, starts, page_at, cu_rows, cu_paths, table, heads, rank, rope,
    cache_row, parts: tl.constexpr, TILES: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr,
    KEYS: tl.constexpr, PART: tl.constexpr, R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One part: out [T, H, R] when it is the only one. Else out [T, H, parts, R] f32 is not yet divided by
    the sum of probabilities, and sums [T, H, parts, 2] f32 has that sum after their maximum."""
    program, part = tl.program_id(0), tl.program_id(1)
    span = tl.load(span_of + program // TILES)
    row = tl.load(cu_rows + span)
    rows = tl.load(cu_rows + span + 1) - row
    from_query = ((program // TILES - row) * TILES + program % TILES) * M
    if from_query >= rows * heads:
        return
    query = from_query + tl.arange(0, M)  # of the span
    ok = query < rows * heads
    own = tl.minimum(query // heads, rows - 1)  # row of the span
    position = tl.load(positions + row + own)  # the last key that the query sees
    end = tl.minimum(tl.max(position, axis=0) + 1, (part + 1) * PART)
    first = part * PART
    if first >= end:
        return
    start = tl.load(starts + span)
    pages = table + tl.load(page_at + span)
    # Blocks that all rows share, and from the root of a tree on those of each row from `top` to `bottom`.
    forked = tl.load(cu_paths + row) < tl.load(cu_paths + row + 1)
    fork = tl.where(forked, tl.minimum(tl.maximum(start // KEYS * KEYS, first), end), end)
    shared = tl.cdiv(fork - first, KEYS)
    behind = tl.cdiv(end - fork, KEYS)
    top, bottom = from_query // heads, tl.minimum((from_query + M - 1) // heads, rows - 1)

    r, p, key = tl.arange(0, R), tl.arange(0, P), tl.arange(0, KEYS)
    of_query = q + (row * heads + query).to(tl.int64)[:, None] * (rank + rope)
    q_latent = tl.load(of_query + r[None, :], mask=ok[:, None] & (r < rank)[None, :], other=0.0)
    q_rope = tl.load(of_query + rank + p[None, :], mask=ok[:, None] & (p < rope)[None, :], other=0.0)
    best = tl.full((M,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((M,), dtype=tl.float32)
    acc = tl.zeros((M, R), dtype=tl.float32)
    for block in range(0, shared + behind * (bottom - top + 1)):
        alone = block >= shared
        after = tl.maximum(block - shared, 0)
        one = top + after // tl.maximum(behind, 1)  # row of the span, where it is alone
        at = tl.where(alone, fork + after % tl.maximum(behind, 1) * KEYS, first + block * KEYS)
        pos = at + key
        there = pos < tl.where(alone, tl.minimum(tl.load(positions + row + one) + 1, end), end)
        on_path = there & alone & (pos >= start)
        path = table + tl.load(cu_paths + row + one)
        page = tl.load(pages + pos // PAGE, mask=there & (on_path == 0), other=0)
        slot = tl.load(path + (pos - start), mask=on_path, other=0)
        slot = tl.where(on_path, slot, page * PAGE + pos % PAGE).to(tl.int64)
        entry = cache + slot[:, None] * cache_row
        latent = tl.load(entry + r[None, :], mask=there[:, None] & (r < rank)[None, :], other=0.0)
        turned = tl.load(entry + rank + p[None, :], mask=there[:, None] & (p < rope)[None, :], other=0.0)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(turned), scores, input_precision="ieee")
        last = tl.where((own == one) | (alone == 0), position, -1)
        scores = tl.where(pos[None, :] <= last[:, None], scores, float("-inf"))
        now = tl.maximum(best, tl.max(scores, axis=1))
        seen = tl.where(
            now > float("-inf"), now, 0.0
        )  # of a query that has seen nothing yet: not -inf - -inf
        chances = tl.exp(scores - seen[:, None])
        shrink = tl.exp(best - seen)
        total = total * shrink + tl.sum(chances, axis=1)
        acc = tl.dot(chances.to(latent.dtype), latent, acc * shrink[:, None], input_precision="ieee")
        best = now
    place = (row * heads + query).to(tl.int64)
    here = ok[:, None] & (r < rank)[None, :]
    if parts == 1:
        to = out + place[:, None] * rank + r[None, :]
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=here)
    else:
        place = place * parts + part
        tl.store(out + place[:, None] * rank + r[None, :], acc, mask=here)
        tl.store(sums + 2 * place, best, mask=ok)
        tl.store(sums + 2 * place + 1, total, mask=ok)


@triton.jit
def _join(accs, sums, out, positions, heads, rank, parts, PART: tl.constexpr, R: tl.constexpr):
    """out [T, H, R] <- the parts of a row that has any, one after another. Of a single part: its own bits."""
    row, head, r = tl.program_id(0), tl.program_id(1), tl.arange(0, R)
    used = tl.load(positions + row) // PART + 1
    first = (row * heads + head) * parts
    best = float("-inf")
    total = 0.0
    acc = tl.zeros((R,), dtype=tl.float32)
    for part in range(0, used):
        at = first + part
        other = tl.load(sums + 2 * at)
        now = tl.maximum(best, other)
        mine, theirs = tl.exp(best - now), tl.exp(other - now)
        total = total * mine + tl.load(sums + 2 * at + 1) * theirs
        acc = acc * mine + tl.load(accs + at * rank + r, mask=r < rank, other=0.0) * theirs
        best = now
    to = out + (row * heads + head) * rank + r
    tl.store(to, (acc / total).to(out.dtype.element_ty), mask=r < rank)


def parts_of(length: int) -> int:
    """Parts that a grid has for rows which see at most so many keys: a power of two, so that few grids
    differ. parts_of(512) == 1, parts_of(1600) == 4."""
    return 1 << max(0, (length - 1) // PART).bit_length()


def tile_of(rank: int, wide: bool) -> tuple[int, int]:
    """Queries and keys of a tile, by the width of a latent (a power of two) and whether the cache is f32:
    what fits into registers and shared memory. Not by the batch: a row's bits may depend on it."""
    if wide:
        return 16, 32
    return (64, 64) if rank < 256 else (32, 32)


def mla_attention(q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
    """q [T, H, D] already scaled, cache [slots, D] -> [T, H, R]."""
    assert q.is_contiguous()
    assert cache.stride(1) == 1
    rows, heads, width = q.shape
    parts, rope = parts_of(spans.longest), width - rank
    out = torch.empty(rows, heads, rank, dtype=q.dtype, device=q.device)
    accs = sums = out
    if parts > 1:
        accs = torch.empty(rows, heads, parts, rank, dtype=torch.float32, device=q.device)
        sums = torch.empty(rows, heads, parts, 2, dtype=torch.float32, device=q.device)
    block = triton.next_power_of_2(rank)
    queries, keys = tile_of(block, cache.dtype.itemsize > 2)
    tiles = triton.cdiv(heads, queries)
    _attend[rows * tiles, parts](
        q, cache, accs, sums, spans.positions, spans.span_of, spans.starts, spans.page_at, spans.cu_rows,
        spans.cu_paths, spans.table, heads, rank, rope, cache.stride(0), parts=parts, TILES=tiles,
        PAGE=spans.page_size, M=queries, KEYS=keys, PART=PART, R=block, P=triton.next_power_of_2(rope),
        num_warps=4 if block < 256 else 8, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        _join[rows, heads](
            accs, sums, out, spans.positions, heads, rank, parts, PART=PART, R=block, num_warps=1
        )
    return out
