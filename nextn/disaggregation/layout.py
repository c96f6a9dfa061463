"""How many bytes a page is, and how many pages travel at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.disaggregation.identity import Identity

PIECE = 4 << 20  # bytes, or one page


class Layout(NamedTuple):
    layers: int
    page_size: int
    width: int
    dtype: torch.dtype

    @classmethod
    def of(cls, identity: Identity) -> Layout:
        dtype = getattr(torch, identity.dtype)
        return cls(identity.layers, identity.page_size, identity.width, dtype)

    @property
    def page_bytes(self) -> int:
        return self.layers * self.page_size * self.width * self.dtype.itemsize

    @property
    def piece_pages(self) -> int:
        return max(1, PIECE // self.page_bytes)

    @property
    def piece_bytes(self) -> int:
        return self.piece_pages * self.page_bytes

    def pages(self, slots: int) -> int:
        """That so many slots need."""
        return -(-slots // self.page_size)

    def tensor(self, data: NDArray[np.uint8]) -> Tensor:
        """[layers, slots, width] of the bytes of whole pages; shares their memory."""
        return torch.from_numpy(data).view(self.dtype).view(self.layers, -1, self.width)


def flat(data: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous tensor; shares its memory."""
    return data.view(-1).view(torch.uint8).numpy()
