"""The KV pool: one tensor for every layer of the target and of the NextN modules.

[layers, slots, width]: for MLA width = kv_lora_rank + qk_rope_head_dim. The drafter's cache is simply
the last layers, under the same page table. Slot = page * page_size + offset; page 0 belongs to nobody
and takes the writes of padding rows.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVPool:
    def __init__(
        self, layers: int, pages: int, page_size: int, width: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        # Zeros, not empty: a masked slot is multiplied by 0, and 0 * NaN is NaN.
        self.data = torch.zeros(layers, pages * page_size, width, dtype=dtype, device=device)
        self.page_size = page_size

    def layer(self, index: int) -> Tensor:
        """[slots, width]; a view."""
        return self.data[index]

    @property
    def bytes(self) -> int:
        return self.data.numel() * self.data.element_size()
