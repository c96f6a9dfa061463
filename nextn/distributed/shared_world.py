"""All ranks that share a model's experts, on one machine, with shared memory (csrc/world.h).

page 0      barriers and numbers of rows of the groups; data of `nextn.distributed.place`; from SENT on, the
            bytes that each rank has sent
the rest    rows that the groups offer, and results; then the areas of `area`
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from ctypes import pointer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.group import PeerGone
from nextn.distributed.memory import GRAIN, HEADER, Memory, Numbers
from nextn.distributed.parcels import Parcel
from nextn.distributed.shared import address, spins
from nextn.ops.cpu import interface as kernels
from nextn.ops.cpu.library import library

SENT = 3584  # 64 numbers


class SharedWorld(ExpertWorld):
    """threads: of all ranks. For the other parameters see `ExpertWorld`."""

    def __init__(
        self,
        share: ExpertShare,
        groups: int,
        memory: Memory,
        threads: int,
        most_rows: int,
        dynamic: bool = False,
    ) -> None:
        self._memory, self._header = memory, memory.mapped(HEADER)
        struct = kernels.World(
            share.rank, share.size, groups, share.shards, most_rows, spins(threads), address(self._header),
            None, dynamic,
        )  # fmt: skip
        super().__init__(share, groups, struct)
        self.reason, self._moved = "", 0.0
        self._sent = Numbers(self._header, SENT)
        self._arrays: Any = None
        self._end = 0  # end of the mapped memory

    def shared_by(self, model: kernels.Model, layers: int) -> None:
        model.world = pointer(self._struct)
        self._arrays = self._memory.mapped(library().nx_world_bytes(model, layers))
        self._end = len(self._arrays)
        self._struct.memory = address(self._arrays)

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        self._sent[self.share.rank] = self._struct.sent
        return super().step(rows, rest, two)

    def area(self, size: int) -> Bytes:
        assert self._end, "no step has been run"
        at = -(-self._end // GRAIN) * GRAIN
        found = np.frombuffer(self._memory.mapped(size, at), np.uint8)
        self._end = at + size
        return found

    def gathered(self, board: NDArray[Any]) -> None:
        self.meet()

    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        self.meet()

    def meet(self) -> None:
        """A barrier for all ranks."""
        begin = time.perf_counter()
        gone = library().nx_meet(address(self._header), self.share.size, self._struct.spins)
        self._moved += time.perf_counter() - begin
        if gone:
            raise self.gone()

    def give_up(self, reason: str) -> None:
        self.reason = self.reason or reason
        library().nx_break(address(self._header))

    def gone(self) -> PeerGone:
        return PeerGone(self.reason or "another rank that shares the experts has ended")

    def _waited_between_steps(self) -> float:
        return self._moved

    def slow_down(self, nanoseconds: float) -> None:
        """From now on, a byte to another rank takes at least this time. For experiments."""
        self._struct.link = nanoseconds

    @property
    def sent_by_group(self) -> int:
        each = self.share.size // self.groups
        return sum(self._sent.first(self.share.size)[each * self.group : each * (self.group + 1)])
