"""All ranks that share a model's experts, as the engine of each of them knows them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import byref
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.group import PeerGone
from nextn.ops.cpu import library as kernels
from nextn.ops.cpu.library import library

Bytes = NDArray[np.uint8]


class Parcel(NamedTuple):
    """Bytes that a rank hands over to another one; `place` is in an area, at the same place on both."""

    source: int
    to: int
    place: Bytes


class ExpertWorld(ABC):
    """`nextn.distributed.shared_world`: all on one machine. `nextn.distributed.mesh_world`: on several.

    groups: of attention, each with requests of its own; of equally many ranks. most_rows: of a group in a
    step."""

    def __init__(self, share: ExpertShare, groups: int, struct: kernels.World) -> None:
        self.share, self.groups, self.most_rows = share, groups, int(struct.most_rows)
        self.group = share.rank * groups // share.size
        self.busy = False  # had anybody rows in the last step?
        self._struct = struct

    @abstractmethod
    def shared_by(self, model: kernels.Model, layers: int) -> None:
        """Tells the kernels' engine of this model what it needs to know of the ranks."""

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        """Before every pass through the target: this group has so many rows, and `rest` more in the second
        half. two: it wants the halves to be computed by turns. Returns all groups' rows; without any, nobody
        may compute anything. Raises PeerGone."""
        if library().nx_world_step(byref(self._struct), rows, rest, two):
            raise self.gone()
        rows = sum(sum(lane[: self.groups]) for lane in self._struct.rows)
        self.busy = rows > 0
        return rows

    @property
    def dynamic(self) -> bool:
        """Do replicas of an expert take turns from row to row? Else each group has its own."""
        return bool(self._struct.dynamic)

    @abstractmethod
    def area(self, size: int) -> Bytes:
        """So many bytes, zeros at first, for `gathered` and `hand_over`. To be asked for after a step, by all
        ranks in the same order with the same sizes, between two areas there must be a `meet`."""

    @abstractmethod
    def gathered(self, board: NDArray[Any]) -> None:
        """board [ranks, ...], of an area: each rank has written its own row. Afterwards all rows can be read,
        until the next `meet`. Raises PeerGone."""

    @abstractmethod
    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        """Those of all ranks, the same on each; the sources have written theirs. Afterwards they can be read
        where they go to, until the next `meet`. Raises PeerGone."""

    @abstractmethod
    def meet(self) -> None:
        """Between steps: from here on areas may be written again. Raises PeerGone."""

    @abstractmethod
    def give_up(self, reason: str) -> None:
        """Nobody waits any more: a rank is gone."""

    @abstractmethod
    def gone(self) -> PeerGone: ...

    @property
    def in_halves(self) -> bool:
        """Does this step go in two halves?"""
        return bool(self._struct.two)

    @property
    def waited(self) -> float:
        """Seconds that this rank has waited for others in all."""
        return float(self._struct.waited) / 1e9

    @property
    def sent(self) -> int:
        """Bytes that this rank has sent to others in all."""
        return int(self._struct.sent)

    @property
    @abstractmethod
    def sent_by_group(self) -> int:
        """The same of all ranks of this group, up to the last step."""
