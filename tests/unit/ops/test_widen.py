"""GGUF's blocks to numbers: the same as ggml's own Python package makes of them, to the bit."""

import gguf
import numpy as np
import pytest
import torch
from support.gguf_blocks import VALUES, random_stored

from nextn.ops import widen
from nextn.ops.stored import Format, Stored
from nextn.ops.widen import widened


@pytest.mark.parametrize("kind", VALUES)
def test_values_are_those_of_the_gguf_package(kind):
    stored = random_stored(kind, 7, 512, seed=len(kind))
    want = gguf.quants.dequantize(stored.data.numpy(), gguf.GGMLQuantizationType[kind])
    assert np.array_equal(widened(stored, torch.float32).numpy(), want)
    assert torch.equal(widened(stored, torch.bfloat16), torch.from_numpy(want).bfloat16())


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_the_package_quantizes_comes_back(kind):
    """Not only the bytes agree: they mean the weights."""
    weight = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    data = torch.from_numpy(gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind]))
    back = widened(Stored(Format(kind, 32), (5, 96), data), torch.float32)
    assert (back - weight).abs().max() < weight.abs().max() / (100 if kind == "Q8_0" else 6)


def test_rows_of_any_number_and_none(monkeypatch):
    """It goes by chunks of rows, so that little memory is taken on the way."""
    stored = random_stored("Q4_K", 11, 256)
    whole = widened(stored, torch.float32)
    monkeypatch.setattr(widen, "CHUNK", 600)
    assert torch.equal(widened(stored, torch.float32), whole)
    assert torch.equal(widened(stored.rows(range(3, 8)), torch.float32), whole[3:8])
    assert torch.equal(widened(stored.take([9, 0, 4]), torch.float32), whole[[9, 0, 4]])
    assert widened(stored.rows(range(4, 4)), torch.float32).shape == (0, 256)
