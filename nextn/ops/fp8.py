"""Matrices in e4m3 blocks, which products on a GPU read directly: the format of DeepSeek's FP8 checkpoints.

A file has one scale for each block of, for example, 128 outputs by 128 inputs. Here each output has its own
row of scales, one scale for each block of inputs. So matrices can be stacked, and ranks can take any rows,
also within a block of outputs. The scales take 3 % more memory than the values alone.
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
        """An uninitialised matrix."""
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
        """Indexes all axes except the last. The result is a view if torch's is."""
        return Fp8Matrix(self.data[index], self.scale[index], self.block)

    def is_contiguous(self) -> bool:
        return self.data.is_contiguous() and self.scale.is_contiguous()

    def widened(self, dtype: torch.dtype) -> Tensor:
        """The matrix as a plain tensor: multiplied in f32, rounded once."""
        scale = self.scale.repeat_interleave(self.block, dim=-1)[..., : self.shape[-1]]
        return (self.data.float() * scale).to(dtype)


Weight = Tensor | Fp8Matrix


def widened(weight: Weight, dtype: torch.dtype) -> Tensor:
    """The weight as a plain tensor. A plain weight is returned unchanged."""
    return weight.widened(dtype) if isinstance(weight, Fp8Matrix) else weight
