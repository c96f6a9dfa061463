"""Is a matrix product row-invariant on this machine? Measured once at start-up, in milliseconds."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from nextn.ops.base import ROW_ALIGN


def row_invariant(shapes: set[tuple[int, int]], dtype: torch.dtype, device: torch.device) -> bool:
    """True when `F.linear` gives a row the same bits in batches of 8, 16, 24, 64, 72 and 256 rows, at
    any place in the batch, for weights of these (n_out, n_in) shapes; and `torch.bmm` likewise."""
    gen = torch.Generator().manual_seed(0)
    for n_out, n_in in sorted(shapes):
        n_out = min(n_out, 8192)  # the columns repeat long before; keeps the probe short
        weight = torch.randn(n_out, n_in, generator=gen).to(device, dtype)
        x = torch.randn(256, n_in, generator=gen).to(device, dtype)
        batched = weight.t()[None].expand(2, -1, -1)
        want = torch.cat([F.linear(part, weight) for part in x.split(ROW_ALIGN)])
        for m in (16, 24, 64, 72, 256):
            for start in (0, 8, 40):
                if start + m > 256:
                    continue
                part, expected = x[start : start + m], want[start : start + m]
                if not torch.equal(F.linear(part, weight), expected):
                    return False
                twice = torch.bmm(part[None].expand(2, -1, -1), batched)
                if not torch.equal(twice[1], twice[0]):
                    return False
    return True
