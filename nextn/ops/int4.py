"""Converts matrices to 4 bits: what --quantization w4a16 does to weights when they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.stored import INT4, Format, Stored

# Factors of a group's range for which codes are tried. Below 1, the extremes are clipped and all other values
# are rounded in finer steps; above 1, the grid is moved.
RANGES = (1.05, 0.95, 0.85)
AT_ONCE = 32000  # weights: few enough for a core's cache, and for torch to use one thread
LEAST = 1e-12  # range of a group that is all zeros


def quantize_int4(weight: Tensor, group: int, zeros: bool) -> Stored:
    """Quantizes weight [n, k], k a multiple of group, to codes of 4 bits with a scale for each group.

    For the codes of each range, the scale that fits them best is tried; the one with the smallest squared
    error is kept. zeros: each group has a zero point; otherwise all zero points are 8. The quantizers of
    llama.cpp (make_qkx2_quants) and AutoAWQ (auto_clip) search over ranges in the same way.
    """
    n, k = weight.shape
    assert k % group == 0, (weight.shape, group)
    flat = weight.reshape(-1, group)
    count, step = len(flat), max(1, AT_ONCE // group)
    data = torch.empty(count, group // 2, dtype=torch.uint8)
    scale, zero = torch.empty(count), torch.empty(count, dtype=torch.uint8)
    work = _Work(group, min(step, count))
    for start in range(0, count, step):
        some = slice(start, min(start + step, count))
        if some.stop - start != work.count:
            work = _Work(group, some.stop - start)
        work.groups.copy_(flat[some].t())
        data[some], scale[some], zero[some] = work.quantized(zeros)
    per_row = (n, k // group)
    kept = zero.view(per_row) if zeros else None
    return Stored(Format(INT4, group, zeros), (n, k), data.view(n, k // 2), scale.view(per_row), kept)


class _Work:
    """Buffers for `count` groups, with the inputs as the first axis. They are reused: used memory is in the
    CPU's cache and causes no page faults."""

    def __init__(self, group: int, count: int) -> None:
        self.count = count
        self.groups, self._steps = torch.empty(group, count), torch.empty(group, count)
        self._products = torch.empty(group, 2, count)

    def quantized(self, zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Quantizes `groups`: (codes [count, group / 2], two per byte; scale, zero [count])."""
        groups = self.groups
        low, high = groups.amin(0), groups.amax(0)
        if zeros:
            low, high = low.clamp_(max=0), high.clamp_(min=0)
            full = (high - low).clamp_(min=LEAST) / 15
            zero = torch.round(-low / full)
        else:  # the extreme gets code 0, which is one step further from 8 than code 15
            full = torch.where(-low > high, low, high) / -8
            full = torch.where(full == 0, LEAST, full)
            zero = torch.full_like(full, 8)
        bounds = -zero, 15 - zero
        scale, best = full, torch.full_like(full, -1)
        for part in RANGES:
            codes = self._rounded(full * part, *bounds)
            dot, square = self._sums(codes)
            fit = dot / square.clamp_(min=1)  # codes are whole numbers
            gain = dot * fit  # how much smaller the squared error is than with weights of 0
            better = (gain > best) & (fit != 0)
            scale, best = torch.where(better, fit, scale), torch.where(better, gain, best)
        codes = self._rounded(scale, *bounds).add_(zero)
        pairs = torch.add(codes[0::2], codes[1::2], alpha=16)
        return pairs.t().to(torch.uint8), scale, zero.to(torch.uint8)

    def _rounded(self, scale: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """The groups' weights in whole steps of `scale` from the zero point, limited to least .. most."""
        steps = torch.mul(self.groups, 1 / scale, out=self._steps).round_()
        torch.maximum(steps, least, out=steps)
        return torch.minimum(steps, most, out=steps)

    def _sums(self, codes: Tensor) -> Tensor:
        """[2, count]: sums of codes times weights, and of squared codes. torch.sum is not used: its order of
        additions depends on the group's index. Then ranks that convert some rows each would get other scales
        than a rank that converts all."""
        torch.mul(codes, self.groups, out=self._products[:, 0])
        torch.mul(codes, codes, out=self._products[:, 1])
        left = len(codes)
        while left > 1:
            half = left // 2
            self._products[:half] += self._products[left - half : left]
            left -= half
        return self._products[0].clone()
