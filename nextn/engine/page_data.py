"""Contents of pages that are sent between processes of one executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class PageData:
    """The contents as bytes, so that reading a message can create nothing else."""

    pages: Sequence[int]
    data: bytes
    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def of(cls, pages: Sequence[int], data: Tensor) -> PageData:
        plain = data.contiguous().view(torch.uint8).numpy().tobytes()
        return cls(list(pages), plain, tuple(data.shape), str(data.dtype).removeprefix("torch."))

    def tensor(self) -> Tensor:
        """The contents as a read-only tensor."""
        own = torch.frombuffer(bytearray(self.data), dtype=getattr(torch, self.dtype))
        return own.view(self.shape)
