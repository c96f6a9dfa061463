"""Allocates memory for one tensor; it goes back to the system when the tensor is freed.

Loading allocates and frees large tensors between allocations that stay. malloc keeps the holes: loading
105 MB of weights in 5 MB tensors took up to 40 MB more, and a different number in every run. A mapping leaves
no holes.
"""

from __future__ import annotations

import math
import mmap
from io import FileIO

import torch
from torch import Tensor

SMALL = 256 * 1024  # bytes; smaller holes of malloc do no harm


def fresh(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised CPU tensor. The caller may keep it."""
    size = math.prod(shape) * dtype.itemsize
    if size <= SMALL:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(mmap.mmap(-1, size, access=mmap.ACCESS_COPY), dtype=dtype).view(shape)


def read_fresh(file: FileIO, at: int, size: int) -> Tensor | None:
    """[size] uint8: the bytes of a file from offset `at` on. None if the file has fewer."""
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
