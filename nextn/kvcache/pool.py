"""The KV pool: one tensor for all layers of the target and of the NextN modules.

Its shape is [layers, slots, width]. A `CacheLayout` defines the elements of an entry. The drafter's cache is
the last layers, with the same page table. Slot = page * page_size + offset. Page 0 belongs to no request;
padding rows write there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nextn.kvcache.layout import CacheLayout


class KVPool:
    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        layout: CacheLayout,
        dtype: torch.dtype,
        device: torch.device,
        memory: Callable[[int], Tensor] | None = None,
    ) -> None:
        """memory: a function that allocates n bytes of zeros, uint8 on the device."""
        # Zeros, not uninitialised: a masked slot is multiplied by 0, and 0 * NaN is NaN.
        shape = layers, pages * page_size, layout.width
        if memory is None:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        else:
            self.data = memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        self.page_size, self.layout = page_size, layout

    def layer(self, index: int) -> Any:
        """A layer, in the layout's view: for MLA [slots, width]."""
        return self.layout.view(self.data[index])

    def slot(self, pages: Sequence[int], at: int) -> int:
        """The slot of position `at` in a page table."""
        return pages[at // self.page_size] * self.page_size + at % self.page_size

    def move(self, source: Sequence[int], target: Sequence[int], layers: int) -> None:
        """Copies entries between slots in the first `layers` layers. Reads all of them before it writes."""
        index = torch.tensor([source, target], device=self.data.device)
        self.data[:layers].index_copy_(1, index[1], self.data[:layers].index_select(1, index[0]))

    def read(self, pages: Sequence[int], into: Tensor) -> None:
        """Copies pages to the host: into [layers, len(pages) * page_size, width]."""
        rows = into.view(len(into), len(pages), -1)
        if into.device == self.data.device:
            torch.index_select(self._rows, 1, torch.tensor(pages), out=rows)
        else:
            rows.copy_(self._rows[:, list(pages)])

    def write(self, pages: Sequence[int], data: Tensor) -> None:
        """Fills pages with data from `read`."""
        rows = data.view(len(data), len(pages), -1)
        if self.data.device.type == "cpu":  # twice as fast as torch's index_copy_
            self._rows.view(torch.uint8).numpy()[:, list(pages)] = rows.view(torch.uint8).numpy()
        else:
            self._rows[:, list(pages)] = rows.to(self.data.device)

    @property
    def _rows(self) -> Tensor:
        """[layers, pages, page_size * width]"""
        return self.data.view(len(self.data), -1, self.page_size * self.layout.width)
