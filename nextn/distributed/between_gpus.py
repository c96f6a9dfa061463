"""The start of ranks on GPUs: each takes its GPU, they connect, and they agree on numbers."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

from nextn.distributed.gpus import Gpus
from nextn.distributed.group import PeerGone
from nextn.distributed.torch_group import TorchGroup

PATIENCE = 600.0  # seconds; a rank that has ended is noticed in another way
LOOKS = 0.02  # seconds between two checks for messages of the others


class BetweenGpus:
    """A rank's connection to the others. group: gathers arrays."""

    def __init__(
        self, gpus: Gpus, rank: int, size: int, listener: socket.socket | None, check: Callable[[], None]
    ) -> None:
        """Takes the rank's GPU, and waits until the others have taken theirs. listener: rank 0's, at the
        port. check: raises PeerGone if a rank has ended. Raises PeerGone."""
        gpus.take()
        self._rank, self._size, self._check = rank, size, check
        self._meetings = 0
        file = None if listener is None else listener.detach()
        try:
            self._store = dist.TCPStore(  # type: ignore[attr-defined]
                gpus.host, gpus.port, size, rank == 0, timedelta(seconds=PATIENCE), wait_for_workers=False,
                master_listen_fd=file,
            )  # fmt: skip
        except RuntimeError as e:  # torch's own errors are of this kind
            raise PeerGone(f"rank 0 cannot be reached: {e}") from e
        self.all_say(0)
        self.group = TorchGroup(rank, size, self._store, gpus.backend, PATIENCE)

    def all_say(self, number: int) -> list[int]:
        """Waits until all ranks have called this, and returns their numbers. It uses no collective, because a
        wait for NCCL cannot be ended."""
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
