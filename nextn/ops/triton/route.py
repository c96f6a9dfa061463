"""The routers of DeepSeek-V3 (arXiv 2412.19437, 2.1.2) and V2, in f32: first the product, in programs of one
row and a few experts, then the choice, in programs of one row.

The product has few columns, so tiles of 16 rows would leave most of the device idle. Instead, each program
goes through its row in blocks and adds the products elementwise. At the end it sums the block.

In the choice, experts are arranged as G groups of S experts, both padded to a power of two. The best experts
are chosen one after another; of equal ones, the one with the smaller number (torch.topk does not define
this).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.base import Routing
from nextn.ops.triton.early import early, let_next_start, wait

EXPERTS, BLOCK = 4, 1024  # of the product: experts per program, elements at a time


@triton.jit
def _scores(x, router, logits, experts, width, x_row, E: tl.constexpr, C: tl.constexpr, PDL: tl.constexpr):
    """logits [T, experts] <- x [T, width] times router [experts, width]."""
    wait(PDL)
    let_next_start(PDL)
    row, e, c = tl.program_id(0), tl.program_id(1) * E + tl.arange(0, E), tl.arange(0, C)
    acc = tl.zeros((E, C), dtype=tl.float32)
    for at in range(0, width, C):
        ok = at + c < width
        v = tl.load(x + row * x_row + at + c, mask=ok, other=0.0).to(tl.float32)
        g = tl.load(
            router + e[:, None] * width + at + c[None, :],
            mask=(e < experts)[:, None] & ok[None, :],
            other=0.0,
        )
        acc += v[None, :] * g
    tl.store(logits + row * experts + e, tl.sum(acc, axis=1), mask=e < experts)


@triton.jit
def _route(
    logits, bias, ids, weights, groups, group_size, scale, top_groups: tl.constexpr, top_k: tl.constexpr,
    NORMALIZE: tl.constexpr, LIMITED: tl.constexpr, SOFTMAX: tl.constexpr,
    G: tl.constexpr, S: tl.constexpr, K: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait(PDL)
    let_next_start(PDL)
    row = tl.program_id(0)
    place = tl.arange(0, G * S)
    group, one = place // S, place % S
    ok = (group < groups) & (one < group_size)
    expert = group * group_size + one
    logit = tl.load(logits + row * groups * group_size + expert, mask=ok, other=0.0)
    if SOFTMAX:
        scores = tl.where(ok, tl.exp(logit - tl.max(tl.where(ok, logit, float("-inf")), axis=0)), 0.0)
        scores = scores / tl.sum(scores, axis=0)
    else:
        scores = 1.0 / (1.0 + tl.exp(-logit))
    biased = tl.where(ok, scores + tl.load(bias + expert, mask=ok, other=0.0), float("-inf"))
    biased = tl.where(biased == biased, biased, -1e30)  # with NaN, choose any expert that exists
    if LIMITED:
        square = tl.reshape(biased, (G, S))
        g = tl.arange(0, G)
        worth = tl.max(square, axis=1)
        if not SOFTMAX:
            first = tl.argmax(square, axis=1)
            others = tl.where(tl.arange(0, S)[None, :] == first[:, None], float("-inf"), square)
            worth += tl.max(others, axis=1)
        worth = tl.where(g < groups, worth, float("-inf"))
        is_open = g < 0
        for _ in tl.static_range(top_groups):
            best = tl.argmax(worth, axis=0)
            is_open = is_open | (g == best)
            worth = tl.where(g == best, float("-inf"), worth)
        biased = tl.reshape(tl.where(is_open[:, None], square, float("-inf")), (G * S,))
    k = tl.arange(0, K)
    chosen = tl.zeros((K,), dtype=tl.int32)
    mine = tl.zeros((K,), dtype=tl.float32)
    for i in tl.static_range(top_k):
        best = tl.argmax(biased, axis=0)
        chosen = tl.where(k == i, tl.sum(tl.where(place == best, expert, 0), axis=0), chosen)
        mine = tl.where(k == i, tl.sum(tl.where(place == best, scores, 0.0), axis=0), mine)
        biased = tl.where(place == best, float("-inf"), biased)
    if NORMALIZE:
        mine = mine / (tl.sum(mine, axis=0) + 1e-20)
    tl.store(ids + row * top_k + k, chosen.to(tl.int64), mask=k < top_k)
    tl.store(weights + row * top_k + k, mine * scale, mask=k < top_k)


def route(x: Tensor, router: Tensor, bias: Tensor, by: Routing) -> tuple[Tensor, Tensor]:
    """x [T, C], router [E, C] f32, bias [E] f32 -> ids [T, K] int64, weights [T, K] f32, best first."""
    assert x.stride(1) == 1
    assert router.is_contiguous()
    assert router.dtype == torch.float32
    rows, (experts, width) = x.shape[0], router.shape
    groups, top_groups, top_k, normalize, scale, softmax = by
    logits = torch.empty(rows, experts, dtype=torch.float32, device=x.device)
    _scores[rows, triton.cdiv(experts, EXPERTS)](
        x, router, logits, experts, width, x.stride(0), E=EXPERTS,
        C=min(BLOCK, triton.next_power_of_2(width)), num_warps=4, **early(x.device),
    )  # fmt: skip
    ids = torch.empty(rows, top_k, dtype=torch.int64, device=x.device)
    weights = torch.empty(rows, top_k, dtype=torch.float32, device=x.device)
    size = experts // groups
    _route[(rows,)](
        logits, bias, ids, weights, groups, size, scale, top_groups=top_groups, top_k=top_k,
        NORMALIZE=normalize, LIMITED=top_groups < groups, SOFTMAX=softmax, G=triton.next_power_of_2(groups),
        S=triton.next_power_of_2(size), K=triton.next_power_of_2(top_k), num_warps=1, **early(x.device),
    )  # fmt: skip
    return ids, weights
