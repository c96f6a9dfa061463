"""Absorbed MLA (arXiv 2405.04434) over the paged cache, with nothing gathered: a program is one row, HEADS of
its heads and one part of the keys it sees.

A part is PART positions, counted from the sequence's beginning, gone through in blocks of KEYS with the
running maximum and sum of FlashAttention (arXiv 2205.14135); parts are put together in their order, as in
FlashMLA's and FlashDecoding's split keys. Both orders follow from the positions alone, so a row has the same
bits whether it came with a prompt, alone or amid a tree, and however long the others are. Scores, maxima,
sums and what is summed are f32; probabilities are brought to the cache's dtype to be multiplied with it.

Shapes: T rows, H heads, R kv_lora_rank, P rope width, D = R + P.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import PagedAttention

HEADS = 16  # the fewest rows that the matrix units take
PART = 512


@triton.jit
def _attend(
    q, cache, out, sums, positions, page_at, fork, path_at, table, heads, rank, rope, cache_row,
    parts: tl.constexpr, PAGE: tl.constexpr, H: tl.constexpr, KEYS: tl.constexpr, PART: tl.constexpr,
    R: tl.constexpr, P: tl.constexpr,
):  # fmt: skip
    """One part: out [T, H, R] when it is the only one. Else out [T, H, parts, R] f32 is not yet divided by
    the sum of probabilities, and sums [T, H, parts, 2] f32 has that sum after their maximum."""
    row, part = tl.program_id(0), tl.program_id(2)
    end = tl.load(positions + row) + 1  # keys that the row sees
    first = part * PART
    if first >= end:
        return
    pages = table + tl.load(page_at + row)
    paths = table + tl.load(path_at + row)
    forked = tl.load(fork + row)
    head = tl.program_id(1) * H + tl.arange(0, H)
    r, p, key = tl.arange(0, R), tl.arange(0, P), tl.arange(0, KEYS)
    of_head = q + (row * heads + head[:, None]) * (rank + rope)
    q_latent = tl.load(of_head + r[None, :], mask=(head < heads)[:, None] & (r < rank)[None, :], other=0.0)
    q_rope = tl.load(
        of_head + rank + p[None, :], mask=(head < heads)[:, None] & (p < rope)[None, :], other=0.0
    )
    best = tl.full((H,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((H,), dtype=tl.float32)
    acc = tl.zeros((H, R), dtype=tl.float32)
    for at in range(first, tl.minimum(first + PART, end), KEYS):
        pos = at + key
        seen = pos < end
        page = tl.load(pages + pos // PAGE, mask=seen & (pos < forked), other=0)
        slot = tl.load(paths + (pos - forked), mask=seen & (pos >= forked), other=0)
        slot = tl.where(pos < forked, page * PAGE + pos % PAGE, slot).to(tl.int64)
        entry = cache + slot[:, None] * cache_row
        latent = tl.load(entry + r[None, :], mask=seen[:, None] & (r < rank)[None, :], other=0.0)
        turned = tl.load(entry + rank + p[None, :], mask=seen[:, None] & (p < rope)[None, :], other=0.0)
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(turned), scores, input_precision="ieee")
        scores = tl.where(seen[None, :], scores, float("-inf"))
        now = tl.maximum(best, tl.max(scores, axis=1))
        chances = tl.exp(scores - now[:, None])
        shrink = tl.exp(best - now)
        total = total * shrink + tl.sum(chances, axis=1)
        acc = tl.dot(chances.to(latent.dtype), latent, acc * shrink[:, None], input_precision="ieee")
        best = now
    ok = (head < heads)[:, None] & (r < rank)[None, :]
    if parts == 1:
        to = out + (row * heads + head[:, None]) * rank + r[None, :]
        tl.store(to, (acc / total[:, None]).to(out.dtype.element_ty), mask=ok)
    else:
        place = (row * heads + head) * parts + part
        tl.store(out + place[:, None] * rank + r[None, :], acc, mask=ok)
        tl.store(sums + 2 * place, best, mask=head < heads)
        tl.store(sums + 2 * place + 1, total, mask=head < heads)


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


def mla_attention(q: Tensor, cache: Tensor, plan: PagedAttention, rank: int) -> Tensor:
    """q [T, H, D] already scaled, cache [slots, D] -> [T, H, R]."""
    assert q.is_contiguous()
    assert cache.stride(1) == 1
    rows, heads, width = q.shape
    parts, rope = parts_of(plan.longest), width - rank
    out = torch.empty(rows, heads, rank, dtype=q.dtype, device=q.device)
    wide = cache.dtype.itemsize > 2
    accs = sums = out
    if parts > 1:
        accs = torch.empty(rows, heads, parts, rank, dtype=torch.float32, device=q.device)
        sums = torch.empty(rows, heads, parts, 2, dtype=torch.float32, device=q.device)
    block = triton.next_power_of_2(rank)
    _attend[rows, triton.cdiv(heads, HEADS), parts](
        q, cache, accs, sums, plan.positions, plan.page_at, plan.fork, plan.path_at, plan.table, heads, rank,
        rope, cache.stride(0), parts=parts, PAGE=plan.page_size, H=HEADS, KEYS=32 if wide else 64, PART=PART,
        R=block, P=triton.next_power_of_2(rope), num_warps=4 if block < 256 else 8, num_stages=2,
    )  # fmt: skip
    if parts > 1:
        _join[rows, heads](
            accs, sums, out, plan.positions, heads, rank, parts, PART=PART, R=block, num_warps=1
        )
    return out
