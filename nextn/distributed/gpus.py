"""Which GPU each rank of an engine has, and how arrays get from one to the other. One machine."""

from __future__ import annotations

import socket
from typing import NamedTuple

import torch
import torch.distributed as dist

from nextn.distributed.group import Group
from nextn.distributed.torch_group import TorchGroup

JOIN_SECONDS = 60.0  # for all ranks to start Python and CUDA
PATIENCE = 600.0  # seconds of one rank for the others, while they load; who is gone is noticed otherwise


class Gpus(NamedTuple):
    """address: where rank 0 waits for the others (`TorchGroup`). first: rank 0's GPU; the other ranks have
    the next ones. backend: of torch.distributed."""

    address: str
    first: int
    backend: str

    def take(self, rank: int) -> None:
        """This rank's GPU is this process's from here on."""
        torch.cuda.set_device((self.first + rank) % torch.cuda.device_count())

    def group(self, rank: int, size: int) -> TorchGroup:
        """Waits for the other ranks; raises what `TorchGroup` does."""
        return TorchGroup(rank, size, self.address, self.backend, PATIENCE, JOIN_SECONDS)


def share_gpus(ranks: int) -> Gpus:
    """From the current one on, one each where there are enough: NCCL. Else some have the same one, and arrays
    go through the host's memory: Gloo, for NCCL refuses that.

    Raises ValueError for GPUs of several kinds: kernels may round differently on them."""
    first, count = torch.cuda.current_device(), torch.cuda.device_count()
    own = {(first + rank) % count for rank in range(ranks)}
    kinds = {(p.name, p.total_memory) for p in map(torch.cuda.get_device_properties, own)}
    if len(kinds) > 1:
        names = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in sorted(kinds))
        raise ValueError(
            f"--tp-size {ranks}: GPUs of several kinds need not find the same text: {names}; "
            "choose equal ones with CUDA_VISIBLE_DEVICES"
        )
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        address = "tcp://{}:{}".format(*any_port.getsockname())
    return Gpus(address, first, "nccl" if first + ranks <= count else "gloo")


def ranks_of_a_gpu(ranks: int) -> int:
    """At most, of one machine's."""
    return -(-ranks // torch.cuda.device_count())


def least(group: Group, number: int, device: torch.device) -> int:
    """Of what the ranks call this with. None goes on before all have."""
    found = torch.zeros(1, group.size, dtype=torch.int64, device=device)
    found[0, group.rank] = number
    group.gather(found, range(group.size + 1))
    return int(found.min())


def leave_gpus() -> None:
    """So that this process can be a rank of another engine."""
    if dist.is_initialized():
        dist.destroy_process_group()
