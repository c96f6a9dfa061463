"""The pool under both layouts: shapes, bytes, slots, moves."""

import pytest
import torch

from nextn.kvcache.layout import KeyValueLayout, LatentLayout
from nextn.kvcache.pool import KVPool

CPU = torch.device("cpu")
LAYOUTS = {
    "MLA": LatentLayout(6, 2),
    "MLA filled up": LatentLayout(5, 2, align=4),
    "GQA": KeyValueLayout(2, 2),
    "GQA filled up": KeyValueLayout(2, 1, align=2),
}


def pool_of(layout, dtype=torch.float32):
    return KVPool(3, 5, 4, layout, dtype, CPU)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_shape_and_bytes(layout):
    assert layout.width == 8
    pool = pool_of(layout, torch.bfloat16)
    assert pool.data.shape == (3, 20, 8)
    assert pool.data.nbytes == 20 * 3 * 8 * 2  # slots, layers, elements of a token in each
    assert not pool.data.any()


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_moves_whole_entries_of_the_first_layers(layout):
    pool = pool_of(layout)
    pool.data.copy_(torch.arange(pool.data.numel()).view(pool.data.shape))
    before = pool.data.clone()
    source = [pool.slot([2, 4], at) for at in (1, 4, 5)]
    assert source == [9, 16, 17]
    pool.move(source, [16, 9, 3], layers=2)
    want = before.clone()
    want[:2, [16, 9, 3]] = before[:2, source]
    assert torch.equal(pool.data, want)


def test_a_latent_layer_is_its_entries():
    pool = pool_of(LatentLayout(6, 2))
    pool.layer(1)[7] = 1.0
    assert pool.data.sum() == pool.data[1, 7].sum() == 8


def test_a_layer_of_keys_and_values():
    pool = pool_of(KeyValueLayout(2, 2))
    layer = pool.layer(1)
    assert layer.shape == (20, 2, 4)
    values, keys = layer.split(2, dim=-1)
    keys[7] = torch.tensor([[3.0, 4], [7, 8]])
    values[7] = torch.tensor([[1.0, 2], [5, 6]])
    assert pool.data[1, 7].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]
    pool.move([7], [2], layers=3)
    assert torch.equal(pool.layer(1)[2], layer[7])
    assert pool.data[0].any().item() is pool.data[2].any().item() is False
