"""FP8 block dequantization against the definition, element by element, partial blocks included."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.checkpoints import quantize_fp8

from nextn.models.fp8 import dequantize, scale_rows, scale_shape


def by_definition(stored, scale_inv, block):
    n, k = stored.shape
    out = np.empty((n, k), dtype=np.float32)
    values, scales = stored.float().numpy(), scale_inv.numpy()
    for i in range(n):
        for j in range(k):
            out[i, j] = values[i, j] * scales[i // block[0], j // block[1]]
    return torch.from_numpy(out)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    n=st.integers(1, 40), k=st.integers(1, 40), rows=st.integers(1, 20), columns=st.integers(1, 20),
    seed=st.integers(0, 1000),
)  # fmt: skip
def test_equals_the_definition(n, k, rows, columns, seed):
    generator = torch.Generator().manual_seed(seed)
    stored = torch.randn(n, k, generator=generator).to(torch.float8_e4m3fn)
    scale_inv = torch.rand(scale_shape((n, k), (rows, columns)), generator=generator) * 3 + 0.01
    exact = by_definition(stored, scale_inv, (rows, columns))
    for dtype in (torch.float32, torch.bfloat16):
        found = dequantize(stored, scale_inv, (rows, columns), dtype)
        assert found.dtype == dtype
        assert torch.equal(found, exact.to(dtype))
    own = range(seed % (n + 1), n)  # some of the rows, with the scales of their blocks
    scales = scale_rows(own, (rows, columns))
    part = dequantize(
        stored[own.start :], scale_inv[scales.start : scales.stop], (rows, columns), torch.float32, own.start
    )
    assert torch.equal(part, exact[own.start :])


def test_every_e4m3_value():
    stored = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).view(2, 128)
    found = dequantize(stored, torch.ones(1, 1), (128, 128), torch.float32)
    exponent, mantissa = np.arange(128) >> 3, np.arange(128) & 7
    positive = np.where(exponent == 0, mantissa * 2.0**-9, (1 + mantissa / 8) * 2.0 ** (exponent - 7.0))
    positive[127] = np.nan
    np.testing.assert_array_equal(found[0].numpy(), positive)
    np.testing.assert_array_equal(found[1].numpy(), -positive)


@pytest.mark.parametrize("shape", [(128, 128), (257, 130), (1, 5), (576, 64)])
def test_round_trip_keeps_e4m3_precision(shape):
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    weight[0] = 0
    stored, scale_inv = quantize_fp8(weight)
    assert scale_inv.shape == scale_shape(shape, (128, 128))
    found = dequantize(stored, scale_inv, (128, 128), torch.float32)
    # three mantissa bits: half a step is 1/16 of the value, or of the smallest normal number
    step = torch.maximum(weight.abs(), scale_inv.max() * 2.0**-6) / 16
    assert ((found - weight).abs() <= step * 1.001).all()
    assert not torch.equal(found, weight) or shape == (1, 5)
