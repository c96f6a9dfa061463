"""Chooses tokens with the native kernels. `nextn.sampling.sampler` defines the choice."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from ctypes import CDLL

from torch import Tensor

from nextn.ops.base import DrawParams
from nextn.ops.cpu.interface import SAMPLING


def draw(
    kernels: CDLL, logits: Tensor, draws: Sequence[DrawParams], confidence: list[float] | None = None
) -> list[int]:
    """`nextn.ops.base.Draw`: logits [N or more, V] -> the N tokens that `draws` choose, or NO_TOKEN."""
    tokens = array("i", bytes(4 * sum([d.rows for d in draws])))
    assert len(tokens) <= logits.shape[0]
    confidences = array("f", bytes(0 if confidence is None else 4 * len(tokens)))
    kernels.nx_choose(
        logits.data_ptr(), len(draws), logits.shape[1], packed(draws), tokens.buffer_info()[0],
        confidences.buffer_info()[0] if confidences else None,
    )  # fmt: skip
    if confidence is not None:
        confidence += confidences
    return tokens.tolist()


def packed(draws: Sequence[DrawParams]) -> bytes:
    """The draws as the kernels read them: NxSampling structures, one after another."""
    return b"".join([SAMPLING.pack(*d) for d in draws])
