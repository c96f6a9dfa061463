"""The native choice of tokens; see nextn.engine.sampler for its definition."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

from torch import Tensor

from nextn.ops.cpu.library import Sampling, library

# (seed, stream, index, temperature, top_p, min_p, top_k)
Draw = tuple[int, int, int, float, float, float, int]


def draw(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """logits [N or more, V] f32, rows may be written over -> N token ids."""
    n = len(draws)
    params = (Sampling * n)()
    for to, (seed, stream, index, temperature, top_p, min_p, top_k) in zip(params, draws, strict=True):
        to.seed, to.stream, to.index, to.temperature = seed, stream, index, temperature
        to.top_p, to.min_p, to.top_k = top_p, min_p, max(top_k, 0)
    tokens = (ctypes.c_int32 * n)()
    library().nx_choose(logits.data_ptr(), n, logits.shape[1], params, tokens)
    return list(tokens)
