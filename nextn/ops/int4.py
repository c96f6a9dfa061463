"""Matrices to 4 bits: what --quantization w4a16 makes of weights as they are loaded."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.stored import INT4, Format, Stored

# A group's codes are tried over its whole range times each of these. Less than 1 rounds the extremes down and
# everything between them finer; more than 1 moves the grid.
RANGES = (1.05, 0.95, 0.85)
AT_ONCE = 32000  # weights: they stay in a core's cache, and torch does not call its threads for so few
LEAST = 1e-12  # range of a group that is all zeros


def quantize_int4(weight: Tensor, group: int, zeros: bool) -> Stored:
    """weight [n, k], k a multiple of group -> codes and, for each group, the scale with the least squared
    error of those tried: for the codes of each range, the scale that fits them best. zeros: each group has a
    zero point; without, it is 8.

    A search over ranges as in the quantisers of llama.cpp (make_qkx2_quants) and AutoAWQ (auto_clip).
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
    """Room for so many groups, inputs first. Memory that was used before is in the cache and costs no page
    faults."""

    def __init__(self, group: int, count: int) -> None:
        self.count = count
        self.groups, self._steps = torch.empty(group, count), torch.empty(group, count)
        self._products = torch.empty(group, 2, count)

    def quantized(self, zeros: bool) -> tuple[Tensor, Tensor, Tensor]:
        """Of `groups`: (codes [count, group / 2], two a byte; scale, zero [count])."""
        groups = self.groups
        low, high = groups.amin(0), groups.amax(0)
        if zeros:
            low, high = low.clamp_(max=0), high.clamp_(min=0)
            full = (high - low).clamp_(min=LEAST) / 15
            zero = torch.round(-low / full)
        else:  # the extreme gets code 0, which is one step further out than 15
            full = torch.where(-low > high, low, high) / -8
            full = torch.where(full == 0, LEAST, full)
            zero = torch.full_like(full, 8)
        bounds = -zero, 15 - zero
        scale, best = full, torch.full_like(full, -1)
        for part in RANGES:
            codes = self._rounded(full * part, *bounds)
            dot, square = self._sums(codes)
            fit = dot / square.clamp_(min=1)  # codes are whole numbers
            gain = dot * fit  # by so much the squared error is below that of zeros
            better = (gain > best) & (fit != 0)
            scale, best = torch.where(better, fit, scale), torch.where(better, gain, best)
        codes = self._rounded(scale, *bounds).add_(zero)
        pairs = torch.add(codes[0::2], codes[1::2], alpha=16)
        return pairs.t().to(torch.uint8), scale, zero.to(torch.uint8)

    def _rounded(self, scale: Tensor, least: Tensor, most: Tensor) -> Tensor:
        """Steps from the zero point that are nearest to the groups' weights."""
        steps = torch.mul(self.groups, 1 / scale, out=self._steps).round_()
        torch.maximum(steps, least, out=steps)
        return torch.minimum(steps, most, out=steps)

    def _sums(self, codes: Tensor) -> Tensor:
        """[2, count]: of codes times weights, and of codes squared. Not torch's sum, whose order of
        additions depends on where a group is among the others: ranks that convert some rows each would find
        other scales than one that converts all."""
        torch.mul(codes, self.groups, out=self._products[:, 0])
        torch.mul(codes, codes, out=self._products[:, 1])
        left = len(codes)
        while left > 1:
            half = left // 2
            self._products[:half] += self._products[left - half : left]
            left -= half
        return self._products[0].clone()
