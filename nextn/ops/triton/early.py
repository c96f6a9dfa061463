"""Programmatic dependent launch (CUDA programming guide, 3.2.8.4): a kernel's programs start while the kernel
before it still runs, and wait for its results where they begin to read. So launching takes no time of its
own: about 0.3 to 0.7 of some 2 to 4 us that a kernel of a decode step takes.

Every kernel waits before it touches memory, and so does a program that has nothing to do. So when a kernel
has ended, all before it have. It may read what any earlier one wrote, and write over what any earlier one
read.
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
    """Until the kernel before has ended: the first thing that a kernel does."""
    if PDL:
        gdc_wait()


@triton.jit
def let_next_start(PDL: tl.constexpr):
    """The next kernel may start once all programs of this one have come here.

    Never before `wait`: the next kernel's programs would take what room earlier kernels leave, many on one
    multiprocessor and few on another. Products come here after their loop, for the same reason."""
    if PDL:
        gdc_launch_dependents()


def supported(device: torch.device) -> bool:
    """Hopper and later have it."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@cache
def early(device: torch.device) -> dict[str, Any]:
    """Options of every launch on a device."""
    return {"PDL": True, "launch_pdl": True} if supported(device) else {"PDL": False}
