"""The size of a page in bytes, and the number of pages in one piece, the unit of transfer."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.disaggregation.identity import Identity

PIECE = 4 << 20  # bytes, at most; or one page, if a page is larger


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
        """Number of pages that hold `slots` slots."""
        return -(-slots // self.page_size)

    def tensor(self, data: NDArray[np.uint8]) -> Tensor:
        """The bytes of whole pages as [layers, slots, width]. Shares their memory."""
        return torch.from_numpy(data).view(self.dtype).view(self.layers, -1, self.width)


def flat(data: Tensor) -> NDArray[np.uint8]:
    """The bytes of a contiguous host tensor. Shares its memory."""
    return data.view(-1).view(torch.uint8).numpy()
