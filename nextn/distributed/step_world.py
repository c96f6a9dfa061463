"""What runs steps has to know of all ranks that share a model's experts: `nextn.distributed.expert_world` for
the native kernels, `nextn.distributed.torch_experts` for the torch model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.parcels import Parcel


class MovesBytes(Protocol):
    """Between steps. Each may raise PeerGone."""

    @property
    def share(self) -> ExpertShare: ...

    def area(self, size: int) -> Bytes:
        """So many bytes, zeros at first, for `gathered` and `hand_over`. To be asked for after a step, by all
        ranks in the same order with the same sizes, between two areas there must be a `meet`."""

    def gathered(self, board: NDArray[Any]) -> None:
        """board [ranks, ...], of an area: each rank has written its own row. Afterwards all rows can be read,
        until the next `meet`."""

    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        """Those of all ranks, the same on each; the sources have written theirs. Afterwards they can be read
        where they go to, until the next `meet`."""

    def meet(self) -> None:
        """From here on areas may be written again."""


class StepWorld(MovesBytes, Protocol):
    """groups: of attention, each with requests of its own. group: this rank's."""

    @property
    def groups(self) -> int: ...

    @property
    def group(self) -> int: ...

    @property
    def busy(self) -> bool:
        """Had anybody rows in the last step?"""

    @property
    def dynamic(self) -> bool:
        """Do replicas of an expert take turns from row to row? Else each group has its own."""

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        """Before every pass through the target: this group has so many rows, and `rest` more in the second
        half. two: it wants the halves to be computed by turns. Returns all groups' rows; without any, nobody
        may compute anything. Raises PeerGone."""

    @property
    def in_halves(self) -> bool:
        """Does this step go in two halves?"""

    def give_up(self, reason: str) -> None:
        """A rank is gone. Nobody waits any more, as far as a wait can be ended."""

    @property
    def waited(self) -> float:
        """Seconds that this rank has waited for others in all, as far as that is measured."""

    @property
    def sent_by_group(self) -> int:
        """Bytes that all ranks of this group have sent to others, up to the last step."""
