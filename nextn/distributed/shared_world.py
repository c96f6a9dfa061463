"""All ranks that share a model's experts, on one machine: memory that all of them map (csrc/world.h).

page 0      meetings and rows of the groups; from byte BEATS on, a counter of each group; from SENT on, the
            bytes that each rank has sent
the rest    rows that were offered, and results; then what `area` gives
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from ctypes import byref, pointer
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.config import usable_cores
from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.group import PeerGone
from nextn.distributed.memory import GRAIN, HEADER, Memory, Numbers
from nextn.distributed.shared import FEW_SPINS, SPINS, address
from nextn.ops.cpu import library as kernels
from nextn.ops.cpu.library import library

BEATS, SENT = 3072, 3584  # 64 numbers each


class SharedWorld:
    """groups: of attention, each with requests of its own; of equally many ranks. threads: of all ranks.
    most_rows: of a group in a step. dynamic: replicas of an expert take turns from row to row; else each
    group has its own."""

    def __init__(
        self,
        share: ExpertShare,
        groups: int,
        memory: Memory,
        threads: int,
        most_rows: int,
        dynamic: bool = False,
    ) -> None:
        self.share, self.groups, self.most_rows = share, groups, most_rows
        self.group = share.rank * groups // share.size
        self.reason, self.busy = "", False  # busy: had anybody rows in the last step?
        self._memory, self._header = memory, memory.mapped(HEADER)
        self._beats, self._sent = Numbers(self._header, BEATS), Numbers(self._header, SENT)
        self._arrays: Any = None
        self._end = 0  # of what is mapped
        spins = SPINS if threads <= usable_cores() else FEW_SPINS
        self._struct = kernels.World(
            share.rank, share.size, groups, share.shards, most_rows, spins, address(self._header), dynamic,
        )  # fmt: skip

    def shared_by(self, model: kernels.Model, layers: int) -> None:
        """Tells the kernels' engine of this model what it needs to know of the ranks."""
        model.world = pointer(self._struct)
        self._arrays = self._memory.mapped(library().nx_world_bytes(model, layers))
        self._end = len(self._arrays)
        self._struct.memory = address(self._arrays)

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        """Before every pass through the target: this group has so many rows, and `rest` more in the second
        half. two: it wants the halves to be computed by turns. Returns all groups' rows; without any, nobody
        may compute anything. Raises PeerGone."""
        self._sent[self.share.rank] = self._struct.sent
        if library().nx_world_step(byref(self._struct), rows, rest, two):
            raise self.gone()
        rows = sum(sum(lane[: self.groups]) for lane in self._struct.rows)
        self.busy = rows > 0
        return rows

    @property
    def dynamic(self) -> bool:
        return bool(self._struct.dynamic)

    def area(self, size: int) -> NDArray[np.uint8]:
        """So many more bytes that all ranks map, zeros at first. To be asked for after a step, by all ranks
        in the same order with the same sizes, between two areas there must be a `meet`."""
        assert self._end, "no step has been run"
        at = -(-self._end // GRAIN) * GRAIN
        found = np.frombuffer(self._memory.mapped(size, at), np.uint8)
        self._end = at + size
        return found

    def meet(self) -> None:
        """Between steps: all ranks wait here for each other. Raises PeerGone."""
        begin = time.perf_counter_ns()
        gone = library().nx_meet(address(self._header), self.share.size, self._struct.spins)
        self._struct.waited += time.perf_counter_ns() - begin
        if gone:
            raise self.gone()

    def give_up(self, reason: str) -> None:
        """Nobody waits any more: a rank is gone."""
        self.reason = self.reason or reason
        library().nx_break(address(self._header))

    def gone(self) -> PeerGone:
        return PeerGone(self.reason or "another rank that shares the experts has ended")

    def slow_down(self, nanoseconds: float) -> None:
        """From now on a byte to another rank takes at least so long. For experiments."""
        self._struct.link = nanoseconds

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
    def sent_by_group(self) -> int:
        """The same of all ranks of this group, up to the last step."""
        each = self.share.size // self.groups
        return sum(self._sent.first(self.share.size)[each * self.group : each * (self.group + 1)])

    def beat(self) -> None:
        self._beats[self.group] += 1

    def beats(self) -> Mapping[int, int | None]:
        """Of the other groups that have begun to."""
        counts = enumerate(self._beats.first(self.groups))
        return {group: count for group, count in counts if count and group != self.group}
