"""The native choice of tokens; see nextn.engine.sampler for its definition."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from torch import Tensor

from nextn.ops.base import Drawn
from nextn.ops.cpu.library import SAMPLING, library


def draw(logits: Tensor, draws: Sequence[Drawn]) -> list[int]:
    """logits [N or more, V] f32, rows may be written over -> the N tokens that `draws` ask for, or
    NO_TOKEN."""
    tokens = array("i", bytes(4 * sum([d.rows for d in draws])))
    assert len(tokens) <= logits.shape[0]
    address = tokens.buffer_info()[0]
    library().nx_choose(logits.data_ptr(), len(draws), logits.shape[1], packed(draws), address)
    return tokens.tolist()


def packed(draws: Sequence[Drawn]) -> bytes:
    """As the kernels read them."""
    return b"".join([SAMPLING.pack(*d) for d in draws])
