"""Matrices in e4m3 blocks, as products on a GPU read them: DeepSeek's FP8 checkpoints, as stored.

A file has one scale for each block of, say, 128 outputs by 128 inputs. Here each output has its own row of
scales, one for each block of inputs. So matrices can be stacked, and ranks can take any of their rows,
wherever a block of outputs ends. That takes 3 % more memory than the values alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Fp8Matrix:
    """data [..., N, K] e4m3, scale [..., N, blocks of K] f32. block: inputs of a block; the last may have
    fewer. An element is float32(data[n, k]) * scale[n, k // block]."""

    data: Tensor
    scale: Tensor
    block: int

    @classmethod
    def empty(cls, shape: tuple[int, ...], block: int, device: torch.device) -> Fp8Matrix:
        """Uninitialised."""
        blocks = (*shape[:-1], -(-shape[-1] // block))
        scale = torch.empty(blocks, dtype=torch.float32, device=device)
        return cls(torch.empty(shape, dtype=torch.float8_e4m3fn, device=device), scale, block)

    @property
    def shape(self) -> torch.Size:
        return self.data.shape

    @property
    def nbytes(self) -> int:
        return int(self.data.nbytes + self.scale.nbytes)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Fp8Matrix:
        """Of all axes but the last; a view where torch's is."""
        return Fp8Matrix(self.data[index], self.scale[index], self.block)

    def is_contiguous(self) -> bool:
        return self.data.is_contiguous() and self.scale.is_contiguous()

    def widened(self, dtype: torch.dtype) -> Tensor:
        """Multiplied in f32, rounded once."""
        scale = self.scale.repeat_interleave(self.block, dim=-1)[..., : self.shape[-1]]
        return (self.data.float() * scale).to(dtype)


Weight = Tensor | Fp8Matrix


def widened(weight: Weight, dtype: torch.dtype) -> Tensor:
    """A plain one as it is."""
    return weight.widened(dtype) if isinstance(weight, Fp8Matrix) else weight
