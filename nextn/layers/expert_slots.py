"""Reads and writes the experts of this rank's slots in one layer, as bytes in the host's memory.
`nextn.distributed.expert_mover` uses this to move experts between slots."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from nextn.distributed.expert_share import Bytes
from nextn.distributed.placement import Placement
from nextn.layers.expert_parallel import ParallelMoE
from nextn.ops.fp8 import Fp8Matrix


class ExpertSlots:
    """`nextn.distributed.expert_mover.Slots` for the torch model. Make it after the weights are loaded: it
    copies them into the slots of further replicas."""

    def __init__(self, moe: ParallelMoE) -> None:
        self._moe = moe
        loaded = {e: slot for slot, e in enumerate(moe.held)}  # of replicas, the last: see `MoE.targets`
        for slot, e in enumerate(moe.held):
            if slot != loaded[e]:
                for to, source in zip(self._parts(slot), self._parts(loaded[e]), strict=True):
                    to.copy_(source)

    def size(self, member: int) -> int:
        return sum(part.nbytes for part in self._parts(member))

    def read(self, member: int, to: Bytes) -> None:
        at = 0
        for part in self._parts(member):
            to[at : at + part.nbytes] = part.cpu().numpy()
            at += part.nbytes

    def write(self, member: int, found: Bytes) -> None:
        at = 0
        for part in self._parts(member):
            part.copy_(torch.from_numpy(found[at : at + part.nbytes]))
            at += part.nbytes

    def take(self, placement: Placement, row: int) -> None:
        self._moe.replicas = self._moe.replicas.placed(placement.physical[row])

    def _parts(self, member: int) -> Iterator[Tensor]:
        """The memory of the weights of the expert in this slot: [bytes] uint8 each."""
        for weight in (self._moe.gate_up, self._moe.down):
            of_one = weight[member]
            both = (of_one.data, of_one.scale) if isinstance(of_one, Fp8Matrix) else (of_one,)
            yield from (tensor.view(torch.uint8).flatten() for tensor in both)
