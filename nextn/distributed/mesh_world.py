"""All ranks that share a model's experts, on several machines: sockets between every two of them
(csrc/world.h)."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import pointer
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.group import PeerGone
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.parcels import Parcel, hand_over
from nextn.ops.cpu import interface as kernels


class MeshWorld(ExpertWorld):
    """ranks: all of them, of all groups. dynamic, groups: see `ExpertWorld`."""

    _rows_are_here = False

    def __init__(self, share: ExpertShare, ranks: MeshRanks, dynamic: bool = True, groups: int = 1) -> None:
        assert (share.rank, share.size) == (ranks.rank, ranks.size)
        struct = kernels.World(
            share.rank, share.size, groups, share.shards, ranks.most_rows, ranks.spins, None, ranks.sockets,
            dynamic,
        )  # fmt: skip
        super().__init__(share, groups, struct)
        self._ranks = ranks
        # For transfers between steps, whose waiting is counted apart.
        self._between = ranks.part(range(ranks.size))

    def shared_by(self, model: kernels.Model, layers: int) -> None:
        model.world = pointer(self._struct)

    def area(self, size: int) -> Bytes:
        return np.zeros(size, np.uint8)

    def gathered(self, board: NDArray[Any]) -> None:
        ranks = self.share.size
        raw = torch.from_numpy(board.view(np.uint8).reshape(1, -1))  # a view of the same memory
        each = raw.numel() // ranks
        self._between.gather(raw, [rank * each for rank in range(ranks + 1)])

    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        hand_over(parcels, self.share.rank, self.share.size, self._between.swap)

    def meet(self) -> None:
        """Nothing to do: areas are not shared with other ranks."""

    def _waited_between_steps(self) -> float:
        return self._between.waited

    def give_up(self, reason: str) -> None:
        self._ranks.give_up(reason)

    def gone(self) -> PeerGone:
        return self._ranks.gone()

    @property
    def sent_by_group(self) -> int:
        return int(self._struct.all_sent)
