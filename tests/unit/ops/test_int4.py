"""Weights to 4 bits: the error of a group's codes, and the edges of a range."""

import pytest
import torch

from nextn.ops.int4 import quantize_int4
from nextn.ops.stored import INT4, Format
from nextn.ops.widen import widened


def normal(n=64, k=1024, seed=0):
    return torch.randn(n, k, generator=torch.Generator().manual_seed(seed)) * 0.02


def error(weight, group, zeros):
    """Root mean square, relative."""
    found = widened(quantize_int4(weight, group, zeros), torch.float32)
    return float((found - weight).square().mean().sqrt() / weight.square().mean().sqrt())


def plain(weight, group, zeros):
    """The error of rounding over each group's whole range."""
    groups = weight.view(-1, group)
    if zeros:
        low, high = groups.amin(1, keepdim=True).clamp(max=0), groups.amax(1, keepdim=True).clamp(min=0)
        scale = (high - low) / 15
        zero = torch.round(-low / scale)
    else:
        scale, zero = groups.abs().amax(1, keepdim=True) / 8, 8.0
    found = (torch.round(groups / scale + zero).clamp(0, 15) - zero) * scale
    return float((found - groups).square().mean().sqrt() / weight.square().mean().sqrt())


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("zeros", [False, True])
def test_the_search_lowers_the_error(group, zeros):
    """Of normal weights, by 3 % or more."""
    weight = normal()
    assert error(weight, group, zeros) < 0.97 * plain(weight, group, zeros)


def test_shapes():
    """More groups than are quantised at once, the last ones fewer. A row's codes do not depend on the others,
    so that ranks with some rows each find those of one."""
    weight = normal(1001, 64)
    stored = quantize_int4(weight, 32, zeros=True)
    assert (stored.format, stored.shape) == (Format(INT4, 32, zeros=True), (1001, 64))
    assert (stored.data.shape, stored.scale.shape, stored.zero.shape) == ((1001, 32), (1001, 2), (1001, 2))
    assert stored.zero.max() <= 15
    for rows in (range(0, 1), range(3, 90), range(480, 1000), range(990, 1001)):
        alone, same = quantize_int4(weight[rows.start : rows.stop], 32, zeros=True), stored.rows(rows)
        assert torch.equal(alone.data, same.data)
        assert torch.equal(alone.scale, same.scale)
        assert torch.equal(alone.zero, same.zero)
    assert quantize_int4(weight, 32, zeros=False).zero is None
    assert quantize_int4(weight[:0], 32, zeros=True).data.shape == (0, 32)


@pytest.mark.parametrize("zeros", [False, True])
def test_edges(zeros):
    """Groups of zeros, of one value, of one sign, with one large weight, of very small and large ones."""
    weight = torch.zeros(8, 32)
    weight[1], weight[2] = 0.25, -0.25
    weight[3], weight[4] = torch.linspace(0.1, 1.6, 32), torch.linspace(-1.6, -0.1, 32)
    weight[5, 7] = 3.0
    weight[6], weight[7] = normal(1, 32) * 1e-6, normal(1, 32) * 1e4
    found = widened(quantize_int4(weight, 32, zeros), torch.float32)
    assert torch.equal(found[0], weight[0])
    assert torch.allclose(found[[1, 2, 5]], weight[[1, 2, 5]], rtol=1e-5)
    for row in (3, 4, 6, 7):
        assert (found[row] - weight[row]).abs().max() < weight[row].abs().max() / 7
