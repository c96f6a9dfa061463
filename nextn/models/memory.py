"""Memory for one tensor that goes back to the system when the tensor goes.

Loading allocates and frees large tensors between allocations that stay. malloc keeps such holes: loading
105 MB of weights in 5 MB tensors took up to 40 MB more, another number in every run. A mapping leaves none.
"""

from __future__ import annotations

import math
import mmap
from io import FileIO

import torch
from torch import Tensor

SMALL = 256 * 1024  # bytes up to which malloc's holes do no harm


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor; it may be kept."""
    size = math.prod(shape) * dtype.itemsize
    if size <= SMALL:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype=dtype).view(shape)


def read_fresh(file: FileIO, at: int, size: int) -> Tensor | None:
    """[size] uint8: the bytes of a file from `at` on. None if the file ends before."""
    raw = fresh((size,), torch.uint8)
    view = raw.numpy().data
    file.seek(at)
    done = 0
    while done < size:  # one read returns 2 GiB at most
        got = file.readinto(view[done:])
        if not got:
            return None
        done += got
    return raw
