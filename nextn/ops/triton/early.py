"""Programmatic dependent launch (CUDA programming guide, 3.2.8.4): the programs of a kernel start while the
previous kernel still runs, and wait for its results before they read. This hides the launch, which is about
0.3 to 0.7 of the 2 to 4 us that a kernel of a decode step takes.

Every kernel waits before it accesses memory, and so do programs without work. So when a kernel has ended, all
earlier kernels have ended too. A kernel may read what any earlier kernel wrote, and may overwrite what any
earlier kernel read.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def wait(PDL: tl.constexpr):
    """Waits until the previous kernel has ended. Every kernel calls it first."""
    if PDL:
        gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """The next kernel may start when all programs of this one have called this.

    Never call it before `wait`: the next kernel's programs would take the room that earlier kernels leave,
    many on one multiprocessor and few on another. For the same reason, products call it after their loop."""
    if PDL:
        gdc_launch_dependents()


def supported(device: torch.device) -> bool:
    """Whether the device has it: Hopper and later."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def early(device: torch.device) -> dict[str, Any]:
    """Keyword arguments for every launch on this device."""
    return {"PDL": True, "launch_pdl": True} if supported(device) else {"PDL": False}
