"""The best token of each row of logits, and its confidence. The logits are in memory, or come from a product
and are never written to memory.

Of equal logits, the first is chosen. There are no sums, so the result does not depend on the order of
comparisons. Each tile of a product stores the best of its columns, the second best, and the column of the
best. Then a program for each row compares the tiles.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import NO_TOKEN
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.ops.triton.product import product, tile_of
from nextn.ops.triton.rows import row_warps

BLOCK = 4096  # logits at a time
TILES = 512  # tiles of logits at a time
NOWHERE = tl.constexpr(2147483647)
NOTHING = tl.constexpr(NO_TOKEN)


@triton.jit
def _choose(best, second, where, confidence):
    """Combines lanes; each has its best, its second best, and the index of its best. Stores the confidence,
    and returns the best and its index."""
    most = tl.max(best, axis=0)
    chosen = tl.min(tl.where(best == most, where, NOWHERE), axis=0)
    others = tl.max(tl.where(where == chosen, second, best), axis=0)
    differ = most > others  # if they are equal, both may be infinite: inf - inf is NaN
    tl.store(confidence, tl.where(differ, most, 0.0) - tl.where(differ, others, 0.0))
    return most, chosen


@triton.jit
def _best_token(logits, ids, confidence, vocab, row_step, V: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    let_next_start(PDL)
    row, v = tl.program_id(0), tl.arange(0, V)
    x = logits + row.to(tl.int64) * row_step
    best = tl.full((V,), float("-inf"), tl.float32)
    second = tl.full((V,), float("-inf"), tl.float32)
    where = v
    for at in range(0, vocab, V):
        z = tl.load(x + at + v, mask=at + v < vocab, other=float("-inf"))
        z = tl.where(z == z, z, float("-inf"))  # not NaN
        ahead = z > best
        second = tl.maximum(second, tl.where(ahead, best, z))
        where = tl.where(ahead, at + v, where)
        best = tl.where(ahead, z, best)
    _, chosen = _choose(best, second, where, confidence + row)
    tl.store(ids + row, chosen.to(tl.int64))


@triton.jit
def _tile_bests(
    x, w, best, second, where, wrong, rows, vocab, n_in, x_row, w_row, tiles,
    M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """best, second, where, wrong [T, tiles] <- for each row of a tile of x W^T: the best, the second best,
    the column of the best, and whether an element is NaN."""
    wait(PDL)
    tile = tl.program_id(1)
    row, col = tl.program_id(0) * M + tl.arange(0, M), tile * N + tl.arange(0, N)
    row_ok, col_ok = row < rows, col < vocab
    z = product(
        x + row.to(tl.int64) * x_row, row_ok, w + col.to(tl.int64) * w_row, col_ok, w, n_in, 1,
        M, N, K, EVEN, 0,
    )  # fmt: skip
    let_next_start(PDL)
    z = tl.where(col_ok[None, :], z, float("-inf"))
    tl.store(wrong + row * tiles + tile, tl.max((z != z).to(tl.int32), axis=1), mask=row_ok)
    z = tl.where(z == z, z, float("-inf"))
    most = tl.max(z, axis=1)
    chosen = tl.min(tl.where(z == most[:, None], col[None, :], NOWHERE), axis=1)
    others = tl.max(tl.where(col[None, :] == chosen[:, None], float("-inf"), z), axis=1)
    tl.store(best + row * tiles + tile, most, mask=row_ok)
    tl.store(second + row * tiles + tile, others, mask=row_ok)
    tl.store(where + row * tiles + tile, chosen, mask=row_ok)


@triton.jit
def _best_tile(bests, seconds, places, wrong, ids, confidence, tiles, V: tl.constexpr, PDL: tl.constexpr):
    wait(PDL)
    let_next_start(PDL)
    row, v = tl.program_id(0), tl.arange(0, V)
    best = tl.full((V,), float("-inf"), tl.float32)
    second = tl.full((V,), float("-inf"), tl.float32)
    bad = tl.zeros((V,), dtype=tl.int32)
    where = v
    for at in range(0, tiles, V):
        ok, tile = at + v < tiles, row * tiles + at + v
        z = tl.load(bests + tile, mask=ok, other=float("-inf"))
        next_one = tl.load(seconds + tile, mask=ok, other=float("-inf"))
        place = tl.load(places + tile, mask=ok, other=0)
        bad = tl.maximum(bad, tl.load(wrong + tile, mask=ok, other=0))
        ahead = z > best
        second = tl.maximum(second, tl.where(ahead, tl.maximum(best, next_one), z))
        where = tl.where(ahead, place, where)
        best = tl.where(ahead, z, best)
    most, chosen = _choose(best, second, where, confidence + row)
    none = (tl.max(bad, axis=0) > 0) | (tl.abs(most) == float("inf"))
    tl.store(ids + row, tl.where(none, NOTHING, chosen).to(tl.int64))


def best_token(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [N, V] f32 -> ids [N] int64, confidence [N] f32."""
    assert logits.stride(1) == 1
    assert logits.dtype == torch.float32
    rows, vocab = logits.shape
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    confidence = torch.empty(rows, dtype=torch.float32, device=logits.device)
    block = min(BLOCK, triton.next_power_of_2(vocab))
    _best_token[(rows,)](
        logits,
        ids,
        confidence,
        vocab,
        logits.stride(0),
        V=block,
        num_warps=row_warps(block),
        **early(logits.device),
    )
    return ids, confidence


def best_of_product(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x [T, n_in], weight [V, n_in] -> ids [T] int64, NO_TOKEN if the best logit is infinite or a logit is
    NaN, and confidence [T] f32."""
    assert x.stride(1) == weight.stride(1) == 1
    (rows, n_in), vocab = x.shape, weight.shape[0]
    tile = tile_of(rows, vocab, n_in, weight.dtype)
    tiles = triton.cdiv(vocab, tile.columns)
    best, second = torch.empty(2, rows, tiles, dtype=torch.float32, device=x.device)
    where, wrong = torch.empty(2, rows, tiles, dtype=torch.int32, device=x.device)
    _tile_bests[triton.cdiv(rows, tile.rows), tiles](
        x, weight, best, second, where, wrong, rows, vocab, n_in, x.stride(0), weight.stride(0), tiles,
        M=tile.rows, N=tile.columns, K=tile.step, EVEN=n_in % tile.step == 0,
        num_warps=tile.warps, num_stages=tile.stages, **early(x.device),
    )  # fmt: skip
    ids = torch.empty(rows, dtype=torch.int64, device=x.device)
    confidence = torch.empty(rows, dtype=torch.float32, device=x.device)
    block = min(TILES, triton.next_power_of_2(tiles))
    _best_tile[(rows,)](
        best, second, where, wrong, ids, confidence, tiles, V=block, num_warps=max(1, block // 128),
        **early(x.device),
    )  # fmt: skip
    return ids, confidence
