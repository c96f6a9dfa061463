"""What every step gets from the host, in one piece of memory, so that one copy sends it.

The host has such a piece for each step under way (`nextn.speculative.device.host_buffers`). The device has
one, which steps read; there it stays where it is.
"""

from __future__ import annotations

import torch

from nextn.ops.base import align
from nextn.speculative.device.gate import NUMBERS


class Sent:
    """whole: [n] int32. Its parts: inputs [requests, width] int32; cutoff [NUMBERS] f32; places [requests]
    int64 and pages [requests] int32, what changes in page tables before the step. Where there are fewer
    changes, the rest are place 0, of the slot that is nobody's, and page 0, which is there."""

    def __init__(self, requests: int, width: int, device: torch.device, pinned: bool = False) -> None:
        """width: numbers of a request. Each part begins at a multiple of 16 bytes."""
        counts = NUMBERS, requests * width, 2 * requests, requests
        ends = [0]
        for count in counts:
            ends.append(ends[-1] + align(count, 4))
        self.whole = torch.zeros(ends[-1], dtype=torch.int32, device=device, pin_memory=pinned)
        parts = [self.whole[at : at + count] for at, count in zip(ends, counts, strict=False)]
        self.cutoff = parts[0].view(torch.float32)
        self.inputs = parts[1].view(requests, width)
        self.places, self.pages = parts[2].view(torch.int64), parts[3]
