"""All ranks that share a model's experts, for the native kernels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from ctypes import byref
from typing import Any

from numpy.typing import NDArray

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.group import PeerGone
from nextn.distributed.parcels import Parcel
from nextn.ops.cpu import interface as kernels
from nextn.ops.cpu.library import library
from nextn.waits import Waits


class ExpertWorld(ABC):
    """`nextn.distributed.shared_world`: all on one machine. `nextn.distributed.mesh_world`: on several. See
    `nextn.distributed.step_world`.

    groups: of attention, each with its own requests; all have the same number of ranks. most_rows: maximum
    of a group in a step."""

    # Rows are not sent, so a rank that waits for those of another group waits for that group.
    _rows_are_here = True

    def __init__(self, share: ExpertShare, groups: int, struct: kernels.World) -> None:
        self.share, self.groups, self.most_rows = share, groups, int(struct.most_rows)
        self.group = share.rank * groups // share.size
        self.busy = False  # whether any group had rows in the last step
        self._struct = struct

    @abstractmethod
    def shared_by(self, model: kernels.Model, layers: int) -> None:
        """Gives the native engine of this model the information about the ranks."""

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        if library().nx_world_step(byref(self._struct), rows, rest, two):
            raise self.gone()
        rows = sum(sum(lane[: self.groups]) for lane in self._struct.rows)
        self.busy = rows > 0
        return rows

    @property
    def dynamic(self) -> bool:
        return bool(self._struct.dynamic)

    @abstractmethod
    def area(self, size: int) -> Bytes: ...

    @abstractmethod
    def gathered(self, board: NDArray[Any]) -> None: ...

    @abstractmethod
    def hand_over(self, parcels: Sequence[Parcel]) -> None: ...

    @abstractmethod
    def meet(self) -> None: ...

    @abstractmethod
    def give_up(self, reason: str) -> None: ...

    @abstractmethod
    def gone(self) -> PeerGone: ...

    @property
    def in_halves(self) -> bool:
        return bool(self._struct.two)

    @property
    def waits(self) -> Waits:
        step, dispatch, combine, slices = (each / 1e9 for each in self._struct.waited)
        moves = self._waited_between_steps()
        others = 0.0
        if self.groups > 1:
            others = step + moves + (dispatch if self._rows_are_here else 0.0)
        return Waits(step, dispatch, combine, slices, 0.0, moves, others)

    @abstractmethod
    def _waited_between_steps(self) -> float:
        """Total seconds: see `Waits.moves`."""

    @property
    def sent(self) -> int:
        """Total bytes that this rank has sent to others."""
        return int(self._struct.sent)

    @property
    @abstractmethod
    def sent_by_group(self) -> int: ...
