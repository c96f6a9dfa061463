"""All ranks that share the torch model's experts (`nextn.distributed.step_world`). They exchange data by
torch.distributed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nextn.distributed.expert_share import Bytes, ExpertShare
from nextn.distributed.parcels import Parcel, hand_over
from nextn.distributed.torch_group import TorchGroup
from nextn.distributed.torch_world import TorchWorld
from nextn.waits import NO_WAITS, Waits


class TorchExpertWorld(TorchWorld):
    """ranks: all of them. dynamic: see `StepWorld`.

    waits: only before steps. Within a step, the device waits, and the host waits for all work of the
    device."""

    in_halves = False

    def __init__(self, ranks: TorchGroup, groups: int, share: ExpertShare, dynamic: bool) -> None:
        assert (ranks.rank, ranks.size) == (share.rank, share.size)
        super().__init__(ranks, groups, share.shards)
        self.share, self.dynamic, self.busy = share, dynamic, False
        self.waits, self.sent, self.sent_by_group = NO_WAITS, 0, 0

    def step(self, rows: int, rest: int = 0, two: bool = False) -> int:
        assert not two, "no pass of the torch model goes in halves"
        begin = time.perf_counter()
        numbers = self.of_all([rows + rest, self.sent])
        took = time.perf_counter() - begin
        self.waits = self.waits.plus(Waits(step=took, others=took if self.groups > 1 else 0.0))
        each = self.size // self.groups
        self.sent_by_group = sum(sent for _, sent in numbers[each * self.group : each * (self.group + 1)])
        found = sum(self.by_group([rows for rows, _ in numbers]))
        self.busy = found > 0
        return found

    def exchange(self, parts: Sequence[Tensor], due: Sequence[int]) -> list[Tensor]:
        self.sent += sum(part.nbytes for rank, part in enumerate(parts) if rank != self.rank)
        return super().exchange(parts, due)

    def area(self, size: int) -> Bytes:
        return np.zeros(size, np.uint8)

    def gathered(self, board: NDArray[Any]) -> None:
        raw = board.view(np.uint8).reshape(self.size, -1)
        raw[:] = self._swapped([raw[self.rank]] * self.size, [raw.shape[1]] * self.size)

    def hand_over(self, parcels: Sequence[Parcel]) -> None:
        hand_over(parcels, self.rank, self.size, self._swapped)

    def _swapped(self, parts: Sequence[Bytes], due: Sequence[int]) -> list[Bytes]:
        """Sends parts[r] to rank r, and returns what each rank sent to this one: due[r] bytes."""
        found = self.exchange([torch.from_numpy(part).to(self.carried_on) for part in parts], due)
        return [part.cpu().numpy() for part in found]

    def meet(self) -> None:
        """Nothing to do: areas are not shared with other ranks."""

    def give_up(self, reason: str) -> None:
        """Nothing to do: with Gloo, a rank that waits for an ended one notices it; with NCCL its process
        ends."""
