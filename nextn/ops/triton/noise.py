"""The random numbers of `nextn.ops.philox.uniforms`, with the same bits, in one kernel. Plain torch launches
about 150 kernels, and each of them processes all numbers.

Shapes: N rows.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.random import philox_impl

from nextn.ops.triton.early import early, let_next_start, wait

QUARTERS = 256  # counters per program; each gives four words


@triton.jit
def _uniforms(
    seed_low, seed_high, stream, position, out, quarters, Q: tl.constexpr, PDL: tl.constexpr
):  # fmt: skip
    """Fills out [N, 4 * quarters] f64. Words are whole numbers below 2^32, so f64 represents them exactly."""
    wait(PDL)
    let_next_start(PDL)
    row, q = tl.program_id(0), tl.program_id(1) * Q + tl.arange(0, Q)
    zero = tl.zeros((Q,), dtype=tl.uint32)
    key = zero + tl.load(seed_low + row).to(tl.uint32), zero + tl.load(seed_high + row).to(tl.uint32)
    c1 = zero + tl.load(position + row).to(tl.uint32)
    c2 = zero + tl.load(stream + row).to(tl.uint32)
    w0, w1, w2, w3 = philox_impl(q.to(tl.uint32), c1, c2, zero, key[0], key[1], 10)
    to = out + row.to(tl.int64) * quarters * 4 + q * 4
    tl.store(to, (w0.to(tl.float64) + 0.5) * 2.0**-32, mask=q < quarters)
    tl.store(to + 1, (w1.to(tl.float64) + 0.5) * 2.0**-32, mask=q < quarters)
    tl.store(to + 2, (w2.to(tl.float64) + 0.5) * 2.0**-32, mask=q < quarters)
    tl.store(to + 3, (w3.to(tl.float64) + 0.5) * 2.0**-32, mask=q < quarters)


def uniforms(seed_low: Tensor, seed_high: Tensor, stream: Tensor, position: Tensor, count: int) -> Tensor:
    """Each [N] int64 -> [N, count] f64; count: a multiple of 4."""
    rows, device = len(position), position.device
    assert all(t.is_contiguous() and t.dtype == torch.int64 for t in (seed_low, seed_high, stream, position))
    out = torch.empty(rows, count, dtype=torch.float64, device=device)
    _uniforms[rows, triton.cdiv(count // 4, QUARTERS)](
        seed_low, seed_high, stream, position, out, count // 4, Q=QUARTERS, num_warps=4, **early(device)
    )  # fmt: skip
    return out
