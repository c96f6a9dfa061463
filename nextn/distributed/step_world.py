"""The contract of a world, all ranks that share a model's experts, for the code that runs steps.

`nextn.distributed.expert_world` is for the native kernels, `nextn.distributed.torch_experts` for torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.parcels import Parcel
from nextn.waits import Waits


class MovesBytes(Protocol):
    """Transfers bytes between steps. Each method may raise PeerGone."""

    @property
    def share(self) -> ExpertShare: ...

    def area(self, size: int) -> Bytes:
        """An area of `size` bytes, zeros at first, for `gathered` and `hand_over`. All ranks must call it
        after a step, in the same order with the same sizes, with a `meet` between two areas."""

    def gathered(self, board: NDArray[Any]) -> None:
        """board [ranks, ...], of an area: each rank has written its own row. Afterwards all rows can be read,
        until the next `meet`."""

    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        """Transfers parcels. All ranks call it with the same parcels, after the sources have written theirs.
        Afterwards the destinations can read them, until the next `meet`."""

    def meet(self) -> None:
        """A barrier. After it, areas may be written again."""


class StepWorld(MovesBytes, Protocol):
    """groups: of attention, each with its own requests. group: this rank's."""

    @property
    def groups(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Whether any group had rows in the last step."""

    @property
    def dynamic(self) -> bool:
        """Whether replicas of an expert take turns from row to row. Otherwise each group uses one of them."""

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        """To be called before every forward pass of the target. rows: of this group. rest: further rows, in
        the second half. two: this group wants two halves. Returns the rows of all groups. If there are none,
        no rank may compute anything. Raises PeerGone."""

    @property
    def in_halves(self) -> bool:
        """Whether this step runs in two halves."""

    def give_up(self, reason: str) -> None:
        """A rank has ended: ends all waits that can be ended."""

    @property
    def waits(self) -> Waits:
        """Total seconds that this rank has waited for others, as far as this is measured. Without those in
        its own group."""

    @property
    def sent_by_group(self) -> int:
        """Total bytes that all ranks of this group have sent to others, up to the last step."""
