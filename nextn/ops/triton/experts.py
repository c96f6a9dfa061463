"""Routed experts: sorts rows by expert, computes each expert's rows, and sums the results of each token.

A pair is one expert of one token, with number token * K + k. An expert's pairs go into tiles of ROWS pairs; a
tile has one expert, as in `moe_align_block_size` of vLLM and SGLang. Only the device knows how many tiles
there are. So as many programs start as there could be tiles, and programs without pairs end at once.

Shapes: T tokens, K experts of each, E experts, I their width, C hidden.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Columns
from nextn.ops.fp8 import Weight
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.ops.triton.product import ROWS, operand, product, tile_of, two_products
from nextn.ops.triton.rows import mixed

SQUARE = 8192  # maximum of experts times pairs that are compared at a time
FEW = 256  # up to this many pairs, 64 at a time are faster than 256
APART = 4  # up to this many rows, two rarely share an expert, and each pair is a tile


@triton.jit
def _tiles(
    ids, order, owner, filled, pairs, tiles, M: tl.constexpr, E: tl.constexpr, PAIRS: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Sorts pairs into tiles, in one program. ids [pairs], negative: no expert of this device -> order
    [tiles * M], the pairs of each tile; owner [tiles], its expert; filled [tiles], its number of pairs.

    Worked example, M = 2: ids 5 3 5 5 -> tiles (3: pair 1), (5: pairs 0, 2), (5: pair 3).
    """
    wait(PDL)
    let_next_start(PDL)
    e = tl.arange(0, E)
    count = tl.zeros((E,), dtype=tl.int32)
    for at in range(0, pairs, PAIRS):
        i = at + tl.arange(0, PAIRS)
        mine = tl.load(ids + i, mask=i < pairs, other=-1)[None, :] == e[:, None]
        count += tl.sum(mine.to(tl.int32), axis=1)
    own = (count + M - 1) // M
    begin = tl.cumsum(own, axis=0) - own
    place = begin * M
    for at in range(0, pairs, PAIRS):
        i = at + tl.arange(0, PAIRS)
        id = tl.load(ids + i, mask=i < pairs, other=-1)
        mine = (id[None, :] == e[:, None]).to(tl.int32)
        to = tl.sum(mine * (place[:, None] + tl.cumsum(mine, axis=1) - 1), axis=0)
        tl.store(order + to, i, mask=id >= 0)
        place += tl.sum(mine, axis=1)
    for at in range(0, tiles, PAIRS):
        t = at + tl.arange(0, PAIRS)
        after = t[None, :] - begin[:, None]
        mine = ((after >= 0) & (after < own[:, None])).to(tl.int32)
        left = tl.minimum(count[:, None] - after * M, M)
        tl.store(owner + t, tl.sum(mine * e[:, None], axis=0), mask=t < tiles)
        tl.store(filled + t, tl.sum(mine * left, axis=0), mask=t < tiles)


@triton.jit
def _tile(order, owner, filled, tiles, pairs, rows, top_k, M: tl.constexpr, APART: tl.constexpr):
    """(number of pairs, their numbers, their tokens) of this program's tile. Tiles from `tiles` on are those
    of the shared expert: all `rows` tokens, whose pairs are numbered from `pairs` on. APART: see `Tiles`."""
    tile, i = tl.program_id(0), tl.arange(0, M)
    routed = tile < tiles
    after = (tile - tiles) * M
    if APART:
        n = (tl.load(owner + tile, mask=routed, other=-1) >= 0).to(tl.int32)
        pair = tile + i
    else:
        n = tl.load(filled + tile, mask=routed, other=0)
        pair = tl.load(order + tile * M + i, mask=routed & (i < n), other=0)
    n = tl.where(routed, n, tl.minimum(rows - after, M))
    pair = tl.where(routed, pair, pairs + after + i)
    return n, pair, tl.where(routed, pair // top_k, after + i)


@triton.jit
def _gate_up(
    x, w, s, shared, shared_s, out, order, owner, filled, tiles, pairs, rows, top_k, width, n_in, x_row,
    w_expert, w_row, s_expert, s_row, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    B: tl.constexpr, APART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [pairs + rows, width] <- silu(x G^T) * (x U^T) for each pair's token and expert. s, B: see
    `product`."""
    wait(PDL)
    tile, i = tl.program_id(0), tl.arange(0, M)
    n, pair, token = _tile(order, owner, filled, tiles, pairs, rows, top_k, M, APART)
    if n <= 0:
        return
    weight, scale = shared, shared_s
    if tile < tiles:
        expert = tl.load(owner + tile).to(tl.int64)
        weight, scale = w + expert * w_expert, s + expert * s_expert
    col = tl.program_id(1) * N + tl.arange(0, N)
    a, ok, after = x + token * x_row, col < width, width + col
    gate, up = two_products(
        a, i < n, weight + col * w_row, weight + after * w_row, ok, scale + col * s_row,
        scale + after * s_row, n_in, M, N, K, EVEN, B,
    )  # fmt: skip
    let_next_start(PDL)
    hidden = gate / (1.0 + tl.exp(-gate)) * up
    to = out + pair[:, None] * width + col[None, :]
    tl.store(to, hidden.to(out.dtype.element_ty), mask=(i < n)[:, None] & (col < width)[None, :])


@triton.jit
def _down(
    x, w, s, shared, shared_s, out, order, owner, filled, tiles, pairs, rows, top_k, n_out, n_in, w_expert,
    w_row, s_expert, s_row, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, EVEN: tl.constexpr,
    B: tl.constexpr, APART: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [pairs + rows, n_out] f32 <- x [pairs + rows, n_in] times the weight of each pair's expert. s, B:
    see `product`."""
    wait(PDL)
    tile, i = tl.program_id(0), tl.arange(0, M)
    n, pair, _ = _tile(order, owner, filled, tiles, pairs, rows, top_k, M, APART)
    if n <= 0:
        return
    weight, scale = shared, shared_s
    if tile < tiles:
        expert = tl.load(owner + tile).to(tl.int64)
        weight, scale = w + expert * w_expert, s + expert * s_expert
    col = tl.program_id(1) * N + tl.arange(0, N)
    a, ok = x + pair * n_in, col < n_out
    acc = product(a, i < n, weight + col * w_row, ok, scale + col * s_row, n_in, 1, M, N, K, EVEN, B)
    let_next_start(PDL)
    to = out + pair[:, None] * n_out + col[None, :]
    tl.store(to, acc, mask=(i < n)[:, None] & ok[None, :])


@triton.jit
def _mix(parts, weights, out, rows, width, top_k: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr):
    """out [T, C] f32 <- the sum of each token's results times their weights, in the order of its ids; 0 from
    row `rows` on."""
    wait(PDL)
    let_next_start(PDL)
    row, c = tl.program_id(0), tl.program_id(1) * C + tl.arange(0, C)
    ok = c < tl.where(row < rows, width, 0)
    tl.store(out + row * width + c, mixed(parts, weights, row, c, ok, width, top_k, C), mask=c < width)


class Tiles(NamedTuple):
    """The rows that are computed together, see `_tiles`. shape: of the ids, (R, K). apart: each pair is a
    tile, and all three arrays are the ids: the pairs' experts, negative for an expert on another device."""

    order: Tensor
    owner: Tensor
    filled: Tensor
    shape: torch.Size
    apart: bool


def dispatch(ids: Tensor, count: int) -> Tiles:
    """ids [R, K] int64 of `count` experts; negative: an expert on another device."""
    assert ids.is_contiguous()
    pairs = ids.numel()
    if len(ids) <= APART:
        each = ids.view(-1)
        return Tiles(each, each, each, ids.shape, True)
    most = min(pairs, pairs // ROWS + min(count, pairs))  # tiles
    order = torch.empty(most * ROWS, dtype=torch.int32, device=ids.device)
    owner, filled = torch.empty(2, most, dtype=torch.int32, device=ids.device)
    square = triton.next_power_of_2(count)
    most_pairs = min(256 if pairs > FEW else 64, triton.next_power_of_2(pairs), SQUARE // square)
    _tiles[(1,)](
        ids, order, owner, filled, pairs, most, M=ROWS, E=square, PAIRS=max(16, most_pairs), num_warps=8,
        **early(ids.device),
    )  # fmt: skip
    return Tiles(order, owner, filled, ids.shape, False)


def experts(
    x: Tensor, tiles: Tiles, gate_up: Weight, down: Weight, *, inner: Columns | None = None
) -> Tensor:
    """x [T, C], gate_up [E, 2 * I, C], down [E, C, I] -> [R, K, C] f32; any values for experts on another
    device. inner: see `nextn.ops.base.Ops`."""
    middle = _middle(x, tiles, gate_up)
    if inner is not None:
        middle = inner.whole(middle)
    return _results(middle, tiles, down).view(*tiles.shape, down.shape[1])


def experts_with_shared(
    x: Tensor, tiles: Tiles, gate_up: Weight, down: Weight, shared_gate_up: Weight, shared_down: Weight
) -> tuple[Tensor, Tensor]:
    """(`experts`, the result [T, C] f32 of a shared expert for all rows). shared_gate_up [2 * I, C],
    shared_down [C, I]. Both are computed in the same launches."""
    middle = _middle(x, tiles, gate_up, shared_gate_up)
    results = _results(middle, tiles, down, shared_down)
    pairs = tiles.shape.numel()
    return results[:pairs].view(*tiles.shape, down.shape[1]), results[pairs:]


def _middle(x: Tensor, tiles: Tiles, gate_up: Weight, shared: Weight | None = None) -> Tensor:
    """[R * K, I]: silu(gate) * up of each pair. With a shared expert, T more rows follow."""
    assert x.stride(1) == 1
    assert gate_up.is_contiguous()
    assert shared is None or (shared.is_contiguous() and shared.shape == gate_up.shape[1:])
    order, owner, filled, (rows, top_k), apart = tiles
    w, beside = operand(gate_up), operand(gate_up if shared is None else shared)
    assert w.block == beside.block
    hidden, width, pairs = gate_up.shape[2], gate_up.shape[1] // 2, rows * top_k
    others = 0 if shared is None else len(x)
    out = torch.empty(pairs + others, width, dtype=x.dtype, device=x.device)
    tile = tile_of(ROWS, width, hidden, x.dtype, w.block)
    _gate_up[len(owner) + triton.cdiv(others, ROWS), triton.cdiv(width, tile.columns)](
        x, w.data, w.scale, beside.data, beside.scale, out, order, owner, filled, len(owner), pairs,
        others, top_k, width, hidden, x.stride(0), *w.data.stride()[:2], *w.scale.stride()[:2], M=ROWS,
        N=tile.columns, K=tile.step, EVEN=hidden % (w.block or tile.step) == 0, B=w.block, APART=apart,
        num_warps=tile.warps, num_stages=tile.stages, **early(x.device),
    )  # fmt: skip
    return out


def _results(middle: Tensor, tiles: Tiles, down: Weight, shared: Weight | None = None) -> Tensor:
    """middle [rows, I], with all columns -> [rows, C] f32."""
    assert down.is_contiguous()
    assert shared is None or (shared.is_contiguous() and shared.shape == down.shape[1:])
    order, owner, filled, (rows, top_k), apart = tiles
    w, beside = operand(down), operand(down if shared is None else shared)
    assert w.block == beside.block
    _, hidden, width = down.shape
    pairs, count = rows * top_k, len(middle)
    out = torch.empty(count, hidden, dtype=torch.float32, device=middle.device)
    tile = tile_of(ROWS, hidden, width, middle.dtype, w.block)
    _down[len(owner) + triton.cdiv(count - pairs, ROWS), triton.cdiv(hidden, tile.columns)](
        middle, w.data, w.scale, beside.data, beside.scale, out, order, owner, filled, len(owner), pairs,
        count - pairs, top_k, hidden, width, *w.data.stride()[:2], *w.scale.stride()[:2], M=ROWS,
        N=tile.columns, K=tile.step, EVEN=width % (w.block or tile.step) == 0, B=w.block, APART=apart,
        num_warps=tile.warps, num_stages=tile.stages, **early(middle.device),
    )  # fmt: skip
    return out


def combine(parts: Tensor, weights: Tensor) -> Tensor:
    """parts [R, K, C] f32, weights [T, K] f32 -> [T, C] f32."""
    assert parts.is_contiguous()
    assert weights.is_contiguous()
    (rows, top_k, hidden), total = parts.shape, len(weights)
    out = torch.empty(total, hidden, dtype=torch.float32, device=parts.device)
    block = min(1024, triton.next_power_of_2(hidden))
    _mix[total, triton.cdiv(hidden, block)](
        parts, weights, out, rows, hidden, top_k=top_k, C=block, **early(parts.device)
    )
    return out
