"""Router, routed experts and shared expert against f64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.native_kernels import HALF, SINGLE, FeedForwardBlock, Pool, widened
from torch import Tensor

from nextn.ops.cpu.library import library
from nextn.ops.cpu.weights import padded
from nextn.ops.fp8_rows import rounded

ROWS = (0, 1, 2, 7, 40)
SIZES: dict[str, dict[str, Any]] = {
    "one group": {"top_k": 3},
    "groups": {"groups": 4, "top_groups": 2, "top_k": 3},
    "groups of two, all open": {"groups": 6, "top_groups": 6, "top_k": 5},
    "one group of many": {"groups": 3, "top_groups": 1, "top_k": 4},
    "every expert": {"top_k": 12, "normalize": False, "scale": 1.0},
    "softmax, groups": {
        "groups": 4,
        "top_groups": 2,
        "top_k": 4,
        "normalize": False,
        "softmax": True,
        "scale": 16.0,
    },
    "softmax": {"top_k": 3, "normalize": False, "softmax": True, "scale": 1.0},
}


def best(values: Tensor, k: int) -> Tensor:
    """Places of the k largest of the last axis; equal ones by number."""
    return values.argsort(dim=-1, descending=True, stable=True)[..., :k]


def route(block: FeedForwardBlock, h: Tensor, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """(ids, weights) [rows, top_k]."""
    logits = h.to(dtype) @ block.router.to(dtype).T
    scores = logits.softmax(-1) if block.softmax else torch.sigmoid(logits)
    biased = scores + block.bias.to(dtype)
    grouped = biased.unflatten(-1, (block.groups, -1))
    value = grouped.sort(dim=-1, descending=True).values[..., : 1 if block.softmax else 2].sum(-1)
    closed = torch.ones_like(value, dtype=torch.bool).scatter_(1, best(value, block.top_groups), False)
    ids = best(grouped.masked_fill(closed[..., None], -torch.inf).flatten(-2), block.top_k)
    weights = scores.gather(1, ids)
    if block.normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return ids, weights * block.scale


def expert(h: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Tensor]:
    """h [rows, C] f64 of bf16 values, up [2, I, C], down [C, I] -> (result, its bound).

    What lies between the two products is rounded to bf16. The kernel's f32 sums may round one or two of
    those values the other way than f64 does.
    """
    gate, value = h @ up[0].T, h @ up[1].T
    inner = (gate * torch.sigmoid(gate) * value).float().bfloat16().double()
    terms = inner.abs()[:, None] * down.abs()[None]
    return inner @ down.T, 4 * HALF * terms.amax(-1) + 64 * SINGLE * terms.sum(-1)


def expected(block: FeedForwardBlock, h: Tensor, ids: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    half = h.bfloat16().double()
    total, bound = torch.zeros_like(half), torch.full_like(half, 1e-6)
    for k in range(ids.shape[1]):
        for e in ids[:, k].unique().tolist():
            mine = ids[:, k] == e
            y, b = expert(half[mine], block.ups[e], block.downs[e])
            total[mine] += weights[mine, k, None] * y
            bound[mine] += weights[mine, k, None] * (b + 1e-5 * y.abs())
    if block.shared_inner:
        y, b = expert(half, block.shared_up, block.shared_down)
        total, bound = total + y, bound + b
    return total, bound


def check(pool: Pool, block: FeedForwardBlock) -> None:
    for rows in ROWS:
        h = block.rows(rows, seed=rows)
        y, ids, weights = block.run(pool, h)
        want_ids, want_weights = ids.long(), weights.double()
        if block.experts:
            want_ids, want_weights = route(block, h)
            assert torch.equal(ids.long(), want_ids)
            torch.testing.assert_close(weights.double(), want_weights, rtol=1e-5, atol=1e-7)
        want, bound = expected(block, h, want_ids, want_weights)
        error = (y.double() - want).abs()
        assert (error <= bound + 4 * SINGLE * want.abs()).all()


@pytest.mark.parametrize("name", SIZES)
def test_routed_and_shared(pool: Pool, name: str) -> None:
    check(pool, FeedForwardBlock(hidden=50, inner=24, experts=12, shared_inner=40, **SIZES[name]))


def test_odd_sizes(pool: Pool) -> None:
    check(pool, FeedForwardBlock(hidden=33, inner=13, experts=5, shared_inner=39, top_k=2))
    check(pool, FeedForwardBlock(hidden=1, inner=1, experts=2, shared_inner=1, top_k=1))


def test_routed_only(pool: Pool) -> None:
    check(pool, FeedForwardBlock(hidden=64, inner=32, experts=20, shared_inner=0, top_k=4))


def test_shared_only(pool: Pool) -> None:
    check(pool, FeedForwardBlock(hidden=70, inner=0, experts=0, shared_inner=33))


def test_more_experts_than_rows_want(pool: Pool) -> None:
    """Empty experts between full ones, and the largest number of them."""
    check(pool, FeedForwardBlock(hidden=16, inner=5, experts=1024, shared_inner=0, top_k=2))


def test_nothing_reads_past_the_rows(pool: Pool) -> None:
    """What was computed with more rows before leaves no trace."""
    block = FeedForwardBlock(hidden=50, inner=24, experts=12, shared_inner=40, top_k=3)
    h = block.rows(40)
    block.run(pool, h * 1e4)
    alone = block.run(pool, h[:3])[0]
    with Pool(2) as fresh:
        assert torch.equal(block.run(fresh, h[:3])[0], alone)


def test_equal_scores_go_by_number(pool: Pool) -> None:
    block = FeedForwardBlock(hidden=8, inner=4, experts=12, shared_inner=0, groups=4, top_groups=2, top_k=4)
    h = torch.zeros(3, 8)  # every score is 1/2
    block._bias[0, :12] = torch.tensor([0, 0, 0, 0, 1.0, 1.0, 0, 1.0, 1.0, 0, 0, 0])
    assert block.run(pool, h)[1].tolist() == [[4, 5, 7, 8]] * 3
    block._bias.zero_()
    assert block.run(pool, h)[1].tolist() == [[0, 1, 2, 3]] * 3
    block._bias[0, 9:12] = torch.tensor([1.0, 0.5, 0.5])
    assert block.run(pool, h)[1].tolist() == [[9, 10, 11, 0]] * 3


@pytest.mark.parametrize("scale", [1e-3, 1.0, 20.0, 150.0])
def test_silu_at_any_size(pool: Pool, scale: float) -> None:
    """Also where exp would overflow f32."""
    gate = (torch.linspace(-1, 1, 16) * scale).bfloat16()[:, None]
    block = FeedForwardBlock(hidden=16, inner=0, experts=0, shared_inner=16)
    block.shared_up = torch.stack((gate.expand(16, 16), torch.ones(16, 16))).double()
    block.shared_down = torch.eye(16).double()
    up, down = block._packed(block.shared_up[None], block.shared_down[None])
    block.struct.shared_gate_up, block.struct.shared_down = up, down
    h = torch.zeros(2, 16)
    h[:, 0] = torch.tensor([1.0, -1.0])
    y = block.run(pool, h)[0]
    want = torch.nn.functional.silu(h[:, :1].double() @ gate.double().T) * h[:, :1]
    assert torch.isfinite(y).all()
    assert ((y - want).abs() <= 2 * HALF * want.abs() + 1e-36).all()


@pytest.mark.parametrize("name", SIZES)
def test_a_row_has_the_same_bits_in_any_company(level: str, name: str) -> None:
    block = FeedForwardBlock(hidden=130, inner=40, experts=12, shared_inner=90, **SIZES[name])
    h = block.rows(70)
    with Pool(1) as alone:
        rows = torch.cat([block.run(alone, h[i : i + 1])[0] for i in range(70)])
        for first, n in ((0, 2), (3, 3), (9, 7), (2, 64), (0, 70)):
            assert torch.equal(block.run(alone, h[first : first + n])[0], rows[first : first + n])
        assert torch.equal(block.run(alone, h.flip(0))[0].flip(0), rows)
    for threads in (2, 5):
        with Pool(threads) as some:
            assert torch.equal(block.run(some, h)[0], rows)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("shared_inner", [0, 90])
def test_steps_have_the_bits_of_the_whole(pool: Pool, shared_inner: int, parts: int) -> None:
    """Whoever computes an expert, and whatever lies between the steps."""
    block = FeedForwardBlock(hidden=130, inner=40, experts=12, shared_inner=shared_inner, top_k=3)
    h, shared = block.rows(30), None
    if shared_inner:
        alone = FeedForwardBlock(hidden=130, inner=0, experts=0, shared_inner=shared_inner)
        alone.struct.shared_gate_up = block.struct.shared_gate_up
        alone.struct.shared_down = block.struct.shared_down
        shared = alone.run(pool, h)[0]
    assert torch.equal(block.steps(pool, h, parts, shared), block.run(pool, h)[0])


def test_routed_experts_read_fp8_rows_and_the_shared_one_does_not(pool: Pool) -> None:
    """Nor does the router. A bad row spoils no other."""
    block = FeedForwardBlock(hidden=150, inner=40, experts=12, shared_inner=90, top_k=3)
    alone = FeedForwardBlock(hidden=150, inner=0, experts=0, shared_inner=90)
    alone.struct.shared_gate_up, alone.struct.shared_down = (
        block.struct.shared_gate_up,
        block.struct.shared_down,
    )
    h = block.rows(30)
    shared, plain = alone.run(pool, h)[0], block.run(pool, h)[0]
    want = block.steps(pool, h, 1, shared, read=rounded(h.bfloat16()))
    block.struct.fp8_rows = 1
    assert torch.equal(block.run(pool, h)[0], want)
    assert torch.equal(block.steps(pool, h, 2, shared), want)
    assert not torch.equal(plain, want)
    h[7, 140] = torch.nan
    found = block.run(pool, h)[0]
    assert found[7].isnan().all()
    found[7] = want[7]
    assert torch.equal(found, want)


def test_widths_are_padded_with_zeros(pool: Pool) -> None:
    """So that the residual stream's padding stays zero, as the next norm takes it for granted."""
    block = FeedForwardBlock(hidden=33, inner=13, experts=5, shared_inner=39, top_k=2)
    assert block.stride == padded(33, 32) == 64
    wide = widened(block.rows(4), 32, torch.float32)
    out = torch.zeros_like(wide)
    half = wide.bfloat16()
    library().nx_feed_forward(
        pool.handle, block.struct, wide.data_ptr(), half.data_ptr(), 4, 64, out.data_ptr(), None, None
    )
    assert out[:, :33].any()
    assert not out[:, 33:].any()
