"""Attention that reads the paged cache directly. A program computes a tile of a span's queries, from all its
rows and heads, over a part of the keys that they attend to. It reads these keys once for the whole tile.

In absorbed MLA (arXiv 2405.04434) all heads attend to the same keys. An entry is [latent | rotated]: all of
it is the key, and the latent is the value. In grouped-query attention each group of heads attends to one
key-value head, [value | key] in an entry, and has separate programs.

A query is one head of one row. A span's queries are numbered row by row; a tile has `M` of them. A part is
PART positions, counted from the beginning of the sequence. A program goes through a part in blocks of KEYS,
with the running maximum and sum of FlashAttention (arXiv 2205.14135). Every part starts with empty sums, and
parts are merged in their order (`_merge`), as in the split keys of FlashMLA and FlashDecoding. If each part
has its own program, `_join` merges them; otherwise one program goes through all parts. Both do the same
operations (`enable_fp_fusion=False`: neither fuses a multiplication with an addition that the other does
not), so the number of programs does not change the result.

The order of a sum depends only on the positions. Tiles have one shape in all batches. A block without visible
keys does not change a query's sums. So a row has the same bits with a prompt, alone or in a tree, whatever
the lengths of other rows. Scores, maxima, sums and their terms are f32; probabilities are converted to the
cache's dtype for the product with the values.

Rows of a tree attend to the same keys up to the tree's root, and to different keys from there on. A key's
index in its block follows from its position, whose slot can differ between rows. So the blocks from the root
on are processed once for each row of the tile, and the other rows' queries attend to nothing there.

The grid has, for each row, as many tiles as a single row can need: only the device knows how the rows are cut
into spans. Programs without a tile end at once.

Shapes: T rows, H heads, R kv_lora_rank, P rope width, D = R + P.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Spans
from nextn.ops.triton.early import early, let_next_start, wait

SCRATCH = 128 << 20  # maximum bytes of parts that `_join` merges
FOLDED = 2048  # maximum number of keys whose parts one program goes through
FULL = 1024  # warps that keep a device busy; an H100 has 132 multiprocessors
JOINED = 4  # heads per program of `_join`
LEAST = 16  # elements of a sum that the matrix units process at a time


@triton.jit
def _merge(best, total, acc, other, others, other_acc):
    """The sums over some keys, and the sums over the keys after them -> the sums over all of them."""
    now = tl.maximum(best, other)
    mine, theirs = tl.exp(best - now), tl.exp(other - now)
    return now, total * mine + others * theirs, acc * mine[:, None] + other_acc * theirs[:, None]


@triton.jit
def _block(
    q_latent, q_rope, cache, cache_row, slot, there, pos, last, best, total, acc,
    RANK: tl.constexpr, ROPE: tl.constexpr, R: tl.constexpr, P: tl.constexpr, LATENT: tl.constexpr,
):  # fmt: skip
    """The running maximum, sum and sum of values after one more block of keys. last [M]: the last position
    that each query attends to."""
    r, p = tl.arange(0, R), tl.arange(0, P)
    entry = cache + slot.to(tl.int64)[:, None] * cache_row
    latent = tl.load(entry + r[None, :], mask=there[:, None] & (r < RANK)[None, :], other=0.0)
    turned = tl.load(entry + RANK + p[None, :], mask=there[:, None] & (p < ROPE)[None, :], other=0.0)
    if LATENT:
        scores = tl.dot(q_latent, tl.trans(latent), input_precision="ieee")
        scores = tl.dot(q_rope, tl.trans(turned), scores, input_precision="ieee")
    else:
        scores = tl.dot(q_rope, tl.trans(turned), input_precision="ieee")
    scores = tl.where(pos[None, :] <= last[:, None], scores, float("-inf"))
    now = tl.maximum(best, tl.max(scores, axis=1))
    seen = tl.where(now > float("-inf"), now, 0.0)  # avoids -inf - -inf for a query without keys so far
    chances = tl.exp(scores - seen[:, None])
    shrink = tl.exp(best - seen)
    total = total * shrink + tl.sum(chances, axis=1)
    acc = tl.dot(chances.to(latent.dtype), latent, acc * shrink[:, None], input_precision="ieee")
    return now, total, acc


@triton.jit
def _attend(
    q, cache, out, sums, positions, span_of, starts, page_at, cu_rows, cu_paths, table, parts, cache_row,
    SPLIT: tl.constexpr, HEADS: tl.constexpr, TILES: tl.constexpr, PAGE: tl.constexpr, M: tl.constexpr,
    KEYS: tl.constexpr, PART: tl.constexpr, RANK: tl.constexpr, ROPE: tl.constexpr, R: tl.constexpr,
    P: tl.constexpr, STAGES: tl.constexpr, GROUPS: tl.constexpr, LATENT: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [T, GROUPS * HEADS, R] <- attention over all parts. SPLIT: over one part. Then out
    [T, GROUPS * HEADS, parts, R] f32 is not yet divided by the sum of probabilities. sums
    [T, GROUPS * HEADS, parts, 2] f32 has the maximum and this sum. LATENT: the value is a part of the key;
    otherwise a query has ROPE elements."""
    wait(PDL)
    program, group = tl.program_id(0), tl.program_id(2)
    cache += group * (RANK + ROPE)
    span = tl.load(span_of + program // TILES)
    row = tl.load(cu_rows + span)
    rows = tl.load(cu_rows + span + 1) - row
    from_query = ((program // TILES - row) * TILES + program % TILES) * M
    if from_query >= rows * HEADS:
        return
    query = from_query + tl.arange(0, M)  # of the span
    ok = query < rows * HEADS
    own = tl.minimum(query // HEADS, rows - 1)  # row of the span
    position = tl.load(positions + row + own)  # the last position that the query attends to
    keys = tl.max(position, axis=0) + 1
    first_part, end_part = 0, tl.cdiv(keys, PART)
    if SPLIT:
        first_part = tl.program_id(1)
        end_part = tl.minimum(first_part + 1, end_part)
        if first_part >= end_part:
            return
    start = tl.load(starts + span)
    pages = table + tl.load(page_at + span)
    forked = tl.load(cu_paths + row) < tl.load(cu_paths + row + 1)
    root = tl.where(forked, start // KEYS * KEYS, keys)  # all rows share the blocks before it
    top, bottom = from_query // HEADS, tl.minimum((from_query + M - 1) // HEADS, rows - 1)

    r, p, key = tl.arange(0, R), tl.arange(0, P), tl.arange(0, KEYS)
    place = (((row + query // HEADS) * GROUPS + group) * HEADS + query % HEADS).to(tl.int64)
    before: tl.constexpr = RANK if LATENT else 0  # elements of a query that are multiplied with the value
    of_query = q + place[:, None] * (before + ROPE)
    q_rope = tl.load(of_query + before + p[None, :], mask=ok[:, None] & (p < ROPE)[None, :], other=0.0)
    q_latent = q_rope
    if LATENT:
        q_latent = tl.load(of_query + r[None, :], mask=ok[:, None] & (r < RANK)[None, :], other=0.0)
    whole_best = tl.full((M,), float("-inf"), dtype=tl.float32)
    whole_total = tl.zeros((M,), dtype=tl.float32)
    whole = tl.zeros((M, R), dtype=tl.float32)
    for part in range(first_part, end_part):
        best = tl.full((M,), float("-inf"), dtype=tl.float32)
        total = tl.zeros((M,), dtype=tl.float32)
        acc = tl.zeros((M, R), dtype=tl.float32)
        end = tl.minimum(keys, (part + 1) * PART)
        fork = tl.minimum(tl.maximum(root, part * PART), end)
        for at in tl.range(part * PART, fork, KEYS, num_stages=STAGES):
            pos = at + key
            there = pos < end
            page = tl.load(pages + pos // PAGE, mask=there, other=0)
            best, total, acc = _block(
                q_latent, q_rope, cache, cache_row, page * PAGE + pos % PAGE, there, pos, position, best,
                total, acc, RANK, ROPE, R, P, LATENT,
            )  # fmt: skip
        behind = tl.cdiv(end - fork, KEYS)
        for block in tl.range(0, behind * (bottom - top + 1), num_stages=2):
            one = top + block // tl.maximum(behind, 1)  # the only row of the span that sees these keys
            pos = fork + block % tl.maximum(behind, 1) * KEYS + key
            there = pos < tl.minimum(tl.load(positions + row + one) + 1, end)
            on_path = there & (pos >= start)
            page = tl.load(pages + pos // PAGE, mask=there & (on_path == 0), other=0)
            path = table + tl.load(cu_paths + row + one)
            slot = tl.load(path + (pos - start), mask=on_path, other=0)
            slot = tl.where(on_path, slot, page * PAGE + pos % PAGE)
            best, total, acc = _block(
                q_latent, q_rope, cache, cache_row, slot, there, pos, tl.where(own == one, position, -1),
                best, total, acc, RANK, ROPE, R, P, LATENT,
            )  # fmt: skip
        if SPLIT:
            let_next_start(PDL)
            at = place * parts + part
            tl.store(out + at[:, None] * RANK + r[None, :], acc, mask=ok[:, None] & (r < RANK)[None, :])
            tl.store(sums + 2 * at, best, mask=ok)
            tl.store(sums + 2 * at + 1, total, mask=ok)
        else:
            whole_best, whole_total, whole = _merge(whole_best, whole_total, whole, best, total, acc)
    if not SPLIT:
        let_next_start(PDL)
        to = out + place[:, None] * RANK + r[None, :]
        value = (whole / whole_total[:, None]).to(out.dtype.element_ty)
        tl.store(to, value, mask=ok[:, None] & (r < RANK)[None, :])


@triton.jit
def _join(
    accs, sums, out, positions, parts, HEADS: tl.constexpr, PART: tl.constexpr, RANK: tl.constexpr,
    R: tl.constexpr, JOINED: tl.constexpr, AHEAD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [T, H, R] <- the parts of each row, merged in their order. AHEAD parts are read at a time."""
    wait(PDL)
    let_next_start(PDL)
    row, head, r = tl.program_id(0), tl.program_id(1) * JOINED + tl.arange(0, JOINED), tl.arange(0, R)
    used = tl.load(positions + row) // PART + 1
    place = (row * HEADS + tl.minimum(head, HEADS - 1)).to(tl.int64)
    within = (r < RANK)[None, :]
    best = tl.full((JOINED,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((JOINED,), dtype=tl.float32)
    acc = tl.zeros((JOINED, R), dtype=tl.float32)
    for first in range(0, used, AHEAD):
        for i in tl.static_range(AHEAD):  # a part that does not exist does not change the sums
            at, ok = place * parts + first + i, first + i < used
            other = tl.load(sums + 2 * at, mask=ok, other=float("-inf"))
            others = tl.load(sums + 2 * at + 1, mask=ok, other=0.0)
            values = tl.load(accs + at[:, None] * RANK + r[None, :], mask=within & ok, other=0.0)
            best, total, acc = _merge(best, total, acc, other, others, values)
    value = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * RANK + r[None, :], value, mask=within & (head < HEADS)[:, None])


class AttentionTile(NamedTuple):
    """queries, keys: numbers per block. stages: of the loop over blocks. With 5, two blocks of keys are read
    ahead, with 3 one, because a page's number has to be read before its keys. part: keys per part."""

    queries: int
    keys: int
    warps: int
    stages: int
    part: int


@cache
def shared_memory(device: torch.device) -> int:
    """Maximum bytes of shared memory per program; 0 without CUDA."""
    if device.type != "cuda":
        return 0
    return int(getattr(torch.cuda.get_device_properties(device), "shared_memory_per_block_optin", 0))


def tile_of(rank: int, wide: bool, room: int) -> AttentionTile:
    """The tile for a cache. rank: width of a latent, or of a value and a key together (a power of two). wide:
    whether the cache is f32. room: bytes of shared memory per program. The tile does not depend on the batch
    or on the number of heads, because a row's bits may depend on the tile.

    Shared memory holds the queries and the blocks of keys. With a latent of 512 and 64 rotated elements in
    bf16, each query and each key takes 1,152 bytes:

    | queries | keys | blocks | KiB | fits into |
    |--:|--:|--:|--:|---|
    | 32 | 64 | 2 | 36 + 2 * 72 | H100 (227) |
    | 32 | 64 | 1 | 36 + 72 | A100 (163) |
    | 16 | 64 | 1 | 18 + 72 | GPUs with 99 |

    The sums of 32 queries take 64 registers of each of 256 threads. 64 queries would take 128 of the 255
    registers, and did not fit: ptxas spilled 200 to 700 bytes per thread. With fewer than 64 keys, half of
    eight warps have no work in the scores, whose tiles are 8 keys wide.

    Short parts make one request fast, because each part has a program. Long parts make many requests fast,
    because fewer sums are merged. For narrow latents, 16 queries and parts of 128 keys were the best or
    nearly the best with 1 to 32 requests, on an H200. For wide latents, parts of 128 keys took 25 % less time
    with one request after 1,024 keys, and 22 % more time with 32 requests.
    """
    if wide:
        keys = 32 if room >= 114 << 10 or rank < 512 else 16
        return AttentionTile(16, keys, 8 if rank >= 256 else 4, 3, 256)
    if rank < 256:
        return AttentionTile(16, 64, 4, 5, 128)
    if rank < 512:
        return AttentionTile(16, 32, 4, 5, 128)
    if room < 114 << 10:
        return AttentionTile(16, 64, 8, 3, 256)
    return AttentionTile(32, 64, 8, 5 if room >= 187 << 10 else 3, 256)


def parts_of(length: int, part: int) -> int:
    """Number of parts in the grid if a row attends to at most `length` keys: a power of two, so that there
    are few different grids. parts_of(128, 128) == 1, parts_of(800, 128) == 8."""
    return 1 << max(0, (length - 1) // part).bit_length()


def mla_attention(q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
    """q [T, H, D] already scaled, cache [slots, D] -> [T, H, R]."""
    assert cache.stride(1) == 1
    return _attention(q, cache, spans, rank, q.shape[2] - rank, groups=1, latent=True)


def gqa_attention(q: Tensor, cache: Tensor, spans: Spans) -> Tensor:
    """q [T, H, D] already scaled, cache [slots, G, 2 * D] of [value | key] -> [T, H, D]."""
    width = q.shape[2]
    assert cache.stride()[1:] == (2 * width, 1)
    return _attention(q, cache, spans, width, width, groups=cache.shape[1], latent=False)


def _attention(
    q: Tensor, cache: Tensor, spans: Spans, rank: int, rope: int, groups: int, latent: bool
) -> Tensor:
    """rank: width of a value. rope: number of elements after the value in an entry."""
    assert q.is_contiguous()
    rows, heads, _ = q.shape
    block = max(LEAST, triton.next_power_of_2(rank))
    # In grouped-query attention, the key takes as much shared memory as the value.
    tile = tile_of(block if latent else 2 * block, cache.dtype.itemsize > 2, shared_memory(q.device))
    parts, own = parts_of(spans.longest, tile.part), heads // groups
    tiles = triton.cdiv(own, tile.queries)
    out = torch.empty(rows, heads, rank, dtype=q.dtype, device=q.device)
    # With few rows, a program per part keeps the device busy. With many rows, writing and reading the parts
    # would take longer than reading the keys. But with many keys, all would wait for a long row's program.
    few = rows * tiles * groups * tile.warps < FULL or parts * tile.part > FOLDED
    split = parts > 1 and few and 4 * rows * heads * parts * rank <= SCRATCH
    accs = sums = out
    if split:
        accs = torch.empty(rows, heads, parts, rank, dtype=torch.float32, device=q.device)
        sums = torch.empty(rows, heads, parts, 2, dtype=torch.float32, device=q.device)
    _attend[rows * tiles, parts if split else 1, groups](
        q, cache, accs, sums, spans.positions, spans.span_of, spans.starts, spans.page_at, spans.cu_rows,
        spans.cu_paths, spans.table, parts, cache.stride(0), SPLIT=split, HEADS=own, TILES=tiles,
        PAGE=spans.page_size, M=tile.queries, KEYS=tile.keys, PART=tile.part, RANK=rank, ROPE=rope, R=block,
        P=max(LEAST, triton.next_power_of_2(rope)), STAGES=tile.stages, GROUPS=groups, LATENT=latent,
        num_warps=tile.warps, enable_fp_fusion=False, **early(q.device),
    )  # fmt: skip
    if split:
        _join[rows, triton.cdiv(heads, JOINED)](
            accs, sums, out, spans.positions, parts, HEADS=heads, PART=tile.part, RANK=rank, R=block,
            JOINED=JOINED, AHEAD=4, num_warps=4, enable_fp_fusion=False, **early(q.device),
        )  # fmt: skip
    return out
