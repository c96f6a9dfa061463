"""Which GPU each rank of an engine has, and how the ranks come together. One machine."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from nextn.distributed.group import PeerGone
from nextn.distributed.torch_group import TorchGroup

HOST = "127.0.0.1"
PATIENCE = 600.0  # seconds: who is gone is noticed otherwise
LOOKS = 0.02  # seconds between two, for what the others say
# Nobody outside of the machine has anything to say. NCCL's watchdog is not to end the process: `_gone` of
# nextn.engine.tensor_parallel says what has happened first.
ENVIRONMENT = {"NCCL_SOCKET_IFNAME": "lo", "GLOO_SOCKET_IFNAME": "lo", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}


class Gpus(NamedTuple):
    """port: where rank 0 waits for the others. first: rank 0's GPU; the other ranks have the next ones.
    backend: of torch.distributed."""

    port: int
    first: int
    backend: str

    def take(self, rank: int) -> None:
        """This rank's GPU is this process's from here on."""
        for name, value in ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        torch.cuda.set_device((self.first + rank) % torch.cuda.device_count())


def share_gpus(ranks: int) -> tuple[Gpus, socket.socket]:
    """From the current one on, one each where there are enough: NCCL. Else some have the same one, and arrays
    go through the host's memory: Gloo, for NCCL refuses that. The socket listens at the port.

    Raises ValueError for GPUs of several kinds, as kernels may round differently on them, and where another
    engine of this process has torch.distributed's default group."""
    if dist.is_initialized():
        raise ValueError(
            f"--tp-size {ranks}: this process has a group of torch.distributed already; "
            "run the engine in a process of its own"
        )
    first, count = torch.cuda.current_device(), torch.cuda.device_count()
    own = {(first + rank) % count for rank in range(ranks)}
    kinds = {(p.name, p.total_memory) for p in map(torch.cuda.get_device_properties, own)}
    if len(kinds) > 1:
        names = ", ".join(f"{name} ({size >> 20} MiB)" for name, size in sorted(kinds))
        raise ValueError(
            f"--tp-size {ranks}: GPUs of several kinds need not find the same text: {names}; "
            "choose equal ones with CUDA_VISIBLE_DEVICES"
        )
    listener = socket.create_server((HOST, 0))
    backend = "nccl" if first + ranks <= count else "gloo"
    return Gpus(listener.getsockname()[1], first, backend), listener


def ranks_of_a_gpu(ranks: int) -> int:
    """At most, of one machine's."""
    return -(-ranks // torch.cuda.device_count())


class BetweenGpus:
    """A rank's way to the others. group: what fills up arrays."""

    def __init__(
        self, gpus: Gpus, rank: int, size: int, listener: socket.socket | None, check: Callable[[], None]
    ) -> None:
        """Takes the rank's GPU, and waits for the others to do so. listener: rank 0's. check: raises PeerGone
        where a rank is gone; the same is raised here for what is noticed first."""
        gpus.take(rank)
        self._rank, self._size, self._check = rank, size, check
        self._meetings = 0
        file = None if listener is None else listener.detach()
        try:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                HOST, gpus.port, size, rank == 0, timedelta(seconds=PATIENCE), wait_for_workers=False,
                master_listen_fd=file,
            )  # fmt: skip
        except RuntimeError as e:  # torch's own errors are of this kind
            raise PeerGone(f"rank 0 cannot be reached: {e}") from e
        self.all_say(0)
        self.group = TorchGroup(rank, size, self._store, gpus.backend, PATIENCE)

    def all_say(self, number: int) -> list[int]:
        """What every rank calls this with, once all have. Not by a collective: nothing ends the wait in one
        of NCCL's."""
        self._meetings += 1
        keys = [f"nextn/{self._meetings}/{rank}" for rank in range(self._size)]
        try:
            self._store.set(keys[self._rank], str(number))
            while not self._store.check(keys):
                self._check()
                time.sleep(LOOKS)
            return [int(self._store.get(key)) for key in keys]
        except RuntimeError as e:
            if isinstance(e, PeerGone):
                raise
            raise PeerGone(f"rank 0 has ended: {e}") from e
