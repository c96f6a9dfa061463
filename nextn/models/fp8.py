"""FP8 block weights, the format of DeepSeek-V3's checkpoint: e4m3 values, one float32 scale for each block.

    weight[i, j] = float32(stored[i, j]) * scale_inv[i // rows, j // columns]

The last block of a row or column may be partial. ("inv": the weight was multiplied by the inverse, to store
it.)
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.models.memory import fresh
from nextn.models.names import layer_matrices
from nextn.ops.stored import FP8, Format

SCALE_SUFFIX = "_scale_inv"  # of the weight's own name


def scale_shape(shape: tuple[int, ...], block: tuple[int, int]) -> tuple[int, int]:
    """Shape of the scales of a weight [N, K]: one per block, including partial ones.

    >>> scale_shape((576, 7168), (128, 128))
    (5, 56)
    """
    return -(-shape[0] // block[0]), -(-shape[1] // block[1])


def scale_rows(rows: range, block: tuple[int, int]) -> range:
    """The rows of the scales that belong to these rows of the weight.

    >>> scale_rows(range(192, 384), (128, 128))
    range(1, 3)
    """
    return range(rows.start // block[0], -(-rows.stop // block[0]))


def dequantize(
    stored: Tensor, scale_inv: Tensor, block: tuple[int, int], dtype: torch.dtype, first: int = 0
) -> Tensor:
    """stored [N, K] e4m3, scale_inv `scale_shape` f32 -> [N, K] `dtype`. Multiplied in f32, rounded once.
    first: index of the first of these rows in the whole weight; scale_inv then has their `scale_rows`.

    It converts one row of blocks at a time, so that the f32 copy is a small part of the weight.
    """
    rows, columns = block
    n, k = stored.shape
    cut = first % rows  # rows of the first block that `stored` does not have
    assert scale_inv.shape == scale_shape((cut + n, k), block), (stored.shape, scale_inv.shape, block)
    out = fresh((n, k), dtype)
    for b, start in enumerate(range(-cut, n, rows)):
        scale = scale_inv[b].repeat_interleave(columns)[:k]
        some = slice(max(0, start), start + rows)
        out[some] = stored[some].float().mul_(scale)
    return out


def block_layers(cfg: ModelConfig, nextn_layers: int, stored: Mapping[str, Format]) -> dict[int, int]:
    """Decoder layer -> inputs of a block, for the layers whose matrices are all in e4m3 blocks of one size:
    products can read these as stored. The size has to be a power of two, at least 16, because the steps of
    the Triton kernels are. stored: see `nextn.models.loader.stored_formats`."""
    found = {}
    for layer, names in layer_matrices(cfg, nextn_layers).items():
        formats = {stored.get(name) for name in names}
        one = formats.pop() if len(formats) == 1 else None
        if one is not None and one.name == FP8 and one.group >= 16 and one.group.bit_count() == 1:
            found[layer] = one.group
    return found
