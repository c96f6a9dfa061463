"""Which GPU each rank of an engine has, and how the ranks connect, on one machine or on several."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from ipaddress import ip_address
from typing import NamedTuple

import torch
import torch.distributed as dist

from nextn.distributed.interfaces import interface_of

LOOPBACK = "lo"  # name of the loopback interface
# NCCL's watchdog must not end the process: `_gone` of nextn.engine.tensor_parallel must report the cause
# first. torchrun sets this to 1.
ALWAYS = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


class Gpu(NamedTuple):
    """The GPU of a rank. device: its index in this process. kind: everything that results may depend on, as
    text. uuid: identifies it among the GPUs of all machines."""

    device: int
    kind: str
    uuid: str

    def take(self) -> None:
        """Makes it the current GPU of this process."""
        torch.cuda.set_device(self.device)


class NoGpu(Gpu):
    """For ranks on CPUs that connect in the same way as ranks on GPUs."""

    def take(self) -> None: ...


NO_GPU = NoGpu(0, "CPU", "none")


def gpu_at(place: int) -> Gpu:
    """The first rank of a machine gets the current GPU, the next rank the next one, and after the last the
    first again. If torch finds no GPU, device -1, and `kind` says so."""
    try:
        if not torch.cuda.is_available():
            return Gpu(-1, "torch finds no GPU", "")
        device = (torch.cuda.current_device() + place) % torch.cuda.device_count()
        found = torch.cuda.get_device_properties(device)
    except RuntimeError as e:  # torch's own errors are of this kind
        return Gpu(-1, str(e).partition("\n")[0], "")
    kind = f"{found.name} ({found.total_memory >> 20} MiB, capability {found.major}.{found.minor})"
    return Gpu(device, kind, str(found.uuid))


def make_current(uuid: str) -> None:
    """Makes this GPU the current one. Raises ValueError if this process does not see it."""
    found = [gpu.device for place in range(torch.cuda.device_count()) if (gpu := gpu_at(place)).uuid == uuid]
    if not found:
        raise ValueError(
            f"rank 0 needs GPU {uuid}, which this process cannot see; unset CUDA_VISIBLE_DEVICES"
        )
    torch.cuda.set_device(found[0])


def ranks_of_a_gpu(ranks: int) -> int:
    """The maximum number of ranks on one GPU, for the ranks of one machine."""
    return -(-ranks // torch.cuda.device_count())


class Agreed(NamedTuple):
    """The same on all ranks. backend: of torch.distributed. sharing: by rank, how many have the same GPU."""

    backend: str
    sharing: list[int]


def agreed(gpus: Sequence[Gpu], places: Sequence[str]) -> Agreed:
    """gpus: by rank. places: where each rank is, for errors. Chooses NCCL if each rank has its own GPU.
    Otherwise arrays go through the host's memory, by Gloo, because NCCL refuses two ranks on one GPU.

    Raises ValueError for a rank without a GPU, and for GPUs of different kinds, because kernels may round
    differently on them. Also if another engine of this process uses torch.distributed's default group."""
    ranks = f"--tp-size {len(gpus)}"
    if dist.is_initialized():
        raise ValueError(
            f"{ranks}: this process already has a torch.distributed process group; "
            "run the engine in a process of its own"
        )
    kinds = defaultdict[str, dict[str, None]](dict)
    for gpu, place in zip(gpus, places, strict=True):
        kinds[gpu.kind][place] = None
    said = "; ".join(f"{', '.join(where)}: {kind}" for kind, where in kinds.items())
    if any(gpu.device < 0 for gpu in gpus):
        raise ValueError(f"{ranks} needs a CUDA device for every rank: {said}")
    if len(kinds) > 1:
        raise ValueError(
            f"{ranks}: GPUs of different kinds may generate different texts: {said}; "
            "choose GPUs of one kind with CUDA_VISIBLE_DEVICES"
        )
    count = Counter(gpu.uuid for gpu in gpus)
    sharing = [count[gpu.uuid] for gpu in gpus]
    return Agreed("nccl" if max(sharing) == 1 else "gloo", sharing)


class Gpus(NamedTuple):
    """How this rank connects to the others. sharing: number of ranks on its GPU. host, port: where rank 0
    waits. address: this rank's own in that network."""

    gpu: Gpu
    backend: str
    sharing: int
    host: str
    port: int
    address: str

    def take(self) -> None:
        """Makes this rank's GPU the current GPU of this process."""
        os.environ.update(ALWAYS)
        for name, interface in self.interfaces().items():
            os.environ.setdefault(name, interface)  # a user's own setting has priority
        self.gpu.take()

    def interfaces(self) -> dict[str, str]:
        """Environment variables that tell the libraries which network to use.

        If rank 0 waits at a loopback address, all ranks are on this machine, and the loopback is used.
        Otherwise NCCL chooses a network itself. For Gloo it is set, because Gloo would use the network of the
        machine's host name, which is often the loopback."""
        if ip_address(self.host.partition("%")[0]).is_loopback:
            return {"NCCL_SOCKET_IFNAME": LOOPBACK, "GLOO_SOCKET_IFNAME": LOOPBACK}
        interface = interface_of(self.address)
        return {} if interface is None else {"GLOO_SOCKET_IFNAME": interface}
