"""Ranks that meet as on GPUs, by torch.distributed, with their arrays in the host's memory."""

from __future__ import annotations

from nextn.distributed.gpus import Gpus


class HostGpus(Gpus):
    def take(self, rank: int) -> None: ...
