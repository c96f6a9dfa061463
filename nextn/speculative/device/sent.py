"""The data that every step gets from the host, in one block of memory, so that one copy sends it.

The host has such a block for each launched step (`nextn.speculative.device.host_buffers`). The device has a
single one, at a fixed address, which steps read.
"""

from __future__ import annotations

import torch

from nextn.ops.base import align
from nextn.speculative.device.cutoff import NUMBERS


class Sent:
    """whole: [n] int32. Its parts: inputs [requests, width] int32; cutoff [NUMBERS] f32; places [requests]
    int64 and pages [requests] int32, the changes of page tables before the step. If there are fewer changes,
    the rest write page 0 to place 0, in slot 0, where it is already."""

    def __init__(self, requests: int, width: int, device: torch.device, pinned: bool = False) -> None:
        """width: numbers per request. Each part begins at a multiple of 16 bytes."""
        counts = NUMBERS, requests * width, 2 * requests, requests
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + align(count, 4))
        self.whole = torch.zeros(ends[-1], dtype=torch.int32, device=device, pin_memory=pinned)
        parts = [self.whole[at : at + count] for at, count in zip(ends, counts, strict=False)]
        self.cutoff = parts[0].view(torch.float32)
        self.inputs = parts[1].view(requests, width)
        self.places, self.pages = parts[2].view(torch.int64), parts[3]
