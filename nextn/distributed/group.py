"""Ranks that compute a step together, and the one thing that they do to each other's arrays: fill them up.

Every rank computes some outputs of a product, whole: no sum is cut, so a value has the bits that one device
gives it. Afterwards all ranks hold all outputs. Nothing here does arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the HTTP process does without torch
    from torch import Tensor


class Group(Protocol):
    """All ranks call the same methods in the same order, with arrays of the same shape and dtype."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        """whole [rows, n], contiguous, any dtype: rank r has written columns bounds[r]:bounds[r + 1] of it.
        Fills in those of the others. rows may be 0. Raises PeerGone."""


class PeerGone(RuntimeError):
    """Another rank has ended, or does not answer: no step will run any more. The text says which."""


class Alone:
    """The group of one process on one device."""

    rank, size = 0, 1

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        pass


def bounds(n: int, size: int, unit: int) -> tuple[int, ...]:
    """Where each rank's part of n outputs begins, and n: whole units, as even as they go. [size + 1]"""
    units = -(-n // unit)
    return tuple(min(n, units * rank // size * unit) for rank in range(size + 1))
