"""Memory for one tensor that goes back to the system when the tensor goes.

Loading allocates and frees large tensors between allocations that stay. malloc keeps such holes: loading
105 MB of weights in 5 MB tensors took up to 40 MB more, another number in every run. A mapping leaves none.
"""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

SMALL = 256 * 1024  # bytes up to which malloc's holes do no harm


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor; it may be kept."""
    size = math.prod(shape) * dtype.itemsize
    if size <= SMALL:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype=dtype).view(shape)
