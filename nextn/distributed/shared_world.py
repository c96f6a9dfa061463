"""All ranks that share a model's experts, on one machine: memory that all of them map (csrc/world.h).

page 0      meetings and rows of the groups; from byte BEATS on, a counter of each group
the rest    rows that were offered, and results
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from ctypes import byref, pointer
from typing import Any

from nextn.config import usable_cores
from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.group import PeerGone
from nextn.distributed.memory import HEADER, Memory
from nextn.distributed.shared import FEW_SPINS, SPINS, address
from nextn.ops.cpu import library as kernels
from nextn.ops.cpu.library import library

BEATS = 3072


class SharedWorld:
    """groups: of attention, each with requests of its own; of equally many ranks. threads: of all ranks.
    most_rows: of a group in a step. dynamic: replicas of an expert take turns from row to row; else each
    group has its own. link: nanoseconds that a byte is to take, for experiments."""

    def __init__(
        self,
        share: ExpertShare,
        groups: int,
        memory: Memory,
        threads: int,
        most_rows: int,
        dynamic: bool = False,
        link: float = 0.0,
    ) -> None:
        self.share, self.groups, self.most_rows = share, groups, most_rows
        self.group = share.rank * groups // share.size
        self.reason, self.busy = "", False  # busy: had anybody rows in the last step?
        self._memory, self._header = memory, memory.mapped(HEADER)
        self._arrays: Any = None
        spins = SPINS if threads <= usable_cores() else FEW_SPINS
        self._struct = kernels.World(
            share.rank, share.size, groups, share.shards, most_rows, spins, address(self._header), dynamic,
            link=link,
        )  # fmt: skip

    def shared_by(self, model: kernels.Model, layers: int) -> Any:
        """What the kernels' engine of this model needs to know of the ranks."""
        model.world = pointer(self._struct)
        self._arrays = self._memory.mapped(library().nx_world_bytes(model, layers))
        self._struct.memory = address(self._arrays)
        return pointer(self._struct)

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        """Before every pass through the target: this group has so many rows, and `rest` more in the second
        half. two: it wants the halves to be computed by turns. Returns all groups' rows; without any, nobody
        may compute anything. Raises PeerGone."""
        if library().nx_world_step(byref(self._struct), rows, rest, two):
            raise self.gone()
        rows = sum(sum(lane[: self.groups]) for lane in self._struct.rows)
        self.busy = rows > 0
        return rows

    def give_up(self, reason: str) -> None:
        """Nobody waits any more: a rank is gone."""
        self.reason = self.reason or reason
        library().nx_break(address(self._header))

    def gone(self) -> PeerGone:
        return PeerGone(self.reason or "another rank that shares the experts has ended")

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

    def beat(self) -> None:
        at = BEATS + 8 * self.group
        (count,) = struct.unpack_from("q", self._header, at)
        struct.pack_into("q", self._header, at, count + 1)

    def beats(self) -> Mapping[int, int | None]:
        """Of the other groups that have begun to."""
        counts = struct.unpack_from(f"{self.groups}q", self._header, BEATS)
        return {group: count for group, count in enumerate(counts) if count and group != self.group}
