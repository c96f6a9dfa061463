"""Writes the rows of the relay at the end of a step: a program for each request.

Shapes: R requests.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nextn.ops.triton.early import early, let_next_start, wait
from nextn.speculative.device.triton.columns import (
    DRAFTS,
    ENDED,
    GUESSES,
    INPUTS,
    KEPT,
    LENGTH,
    MAX_DRAFTS,
    RESULT_WIDTH,
    RESULTS,
    ROOT,
    SLOT,
    STARTED,
    TAKEN,
    TOKENS,
    WIDTH,
)  # fmt: skip


@triton.jit
def _end(inputs, relay, results, ended, D: tl.constexpr, PDL: tl.constexpr):
    """Row 0, which belongs to no request and which several programs may write, does not change."""
    wait(PDL)
    let_next_start(PDL)
    n, d = tl.program_id(0), tl.arange(0, D)
    own, line = relay + tl.load(inputs + n * INPUTS + SLOT) * WIDTH, results + n * RESULT_WIDTH
    taken = tl.load(line + TAKEN)
    root = tl.load(line + RESULTS + taken - 1, mask=taken > 0, other=0)
    tl.store(own + LENGTH, tl.load(line + STARTED) + 1 + taken)
    tl.store(own + ROOT, root, mask=taken > 0)
    tl.store(own + DRAFTS, tl.load(line + KEPT))
    tl.store(own + ENDED, tl.load(ended + n))
    guesses = tl.load(line + GUESSES + d, mask=d < MAX_DRAFTS, other=0)
    tl.store(own + TOKENS + d, guesses, mask=d < MAX_DRAFTS)


def end(inputs: Tensor, rows: Tensor, results: Tensor, ended: Tensor) -> None:
    """The relay's rows of `inputs` [R, INPUTS] <- results [R, RESULT_WIDTH], ended [R]."""
    _end[(len(inputs),)](
        inputs, rows, results, ended, D=triton.next_power_of_2(MAX_DRAFTS.value), num_warps=1,
        **early(inputs.device),
    )  # fmt: skip
