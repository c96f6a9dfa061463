"""Ranks that compute a step together, and their only collective: an all-gather.

Every rank computes some outputs of a product. No sum is split, so an output has the same bits as on one
device. After the gather, all ranks have all outputs. There is no arithmetic here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the HTTP process does not import torch
    from torch import Tensor


class Group(Protocol):
    """All ranks call the same methods in the same order, with arrays of the same shape and dtype."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        """whole [rows, n], contiguous, any dtype: rank r has written columns bounds[r]:bounds[r + 1]
        of it. Fills in the columns of the other ranks. rows may be 0. Raises PeerGone."""


class PeerGone(RuntimeError):
    """Another rank has ended or does not answer, so no step can run any more. The text says which rank."""


class Alone:
    """The group of one process on one device."""

    rank, size = 0, 1

    def gather(self, whole: Tensor, bounds: Sequence[int]) -> None:
        pass


def bounds(n: int, size: int, unit: int) -> tuple[int, ...]:
    """[size + 1]: where each rank's part of n outputs begins, and n. Parts are whole units, as even as
    possible."""
    units = -(-n // unit)
    return tuple(min(n, units * rank // size * unit) for rank in range(size + 1))
