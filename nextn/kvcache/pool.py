"""The KV pool: one tensor for every layer of the target and of the NextN modules.

[layers, slots, width]: for MLA width = kv_lora_rank + qk_rope_head_dim. The drafter's cache is simply
the last layers, under the same page table. Slot = page * page_size + offset; page 0 belongs to nobody
and takes the writes of padding rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


class KVPool:
    def __init__(
        self,
        layers: int,
        pages: int,
        page_size: int,
        width: int,
        dtype: torch.dtype,
        device: torch.device,
        memory: Callable[[int], Tensor] | None = None,
    ) -> None:
        """memory: returns n bytes of zeros to use, uint8 on the device."""
        # Zeros, not empty: a masked slot is multiplied by 0, and 0 * NaN is NaN.
        shape = layers, pages * page_size, width
        if memory is None:
            self.data = torch.zeros(shape, dtype=dtype, device=device)
        else:
            self.data = memory(math.prod(shape) * dtype.itemsize).view(dtype).view(shape)
        self.page_size = page_size

    def layer(self, index: int) -> Tensor:
        """One layer, [slots, width]; a view."""
        return self.data[index]

    def slot(self, pages: Sequence[int], at: int) -> int:
        """The slot of position `at` in a page table."""
        return pages[at // self.page_size] * self.page_size + at % self.page_size

    def move(self, source: Sequence[int], target: Sequence[int], layers: int) -> None:
        """Copies entries between slots in the first `layers` layers; reads all before it writes any."""
        index = torch.tensor([source, target], device=self.data.device)
        self.data[:layers].index_copy_(1, index[1], self.data[:layers].index_select(1, index[0]))

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()
