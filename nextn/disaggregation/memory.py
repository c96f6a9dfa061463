"""A sink's memory, in slots, into which a source puts pages. The kind here is shared by two processes of a
machine.

The sink makes the memory and copies pages out of it. So a faulty or late source cannot write into pages of
other requests. The memory has no name, so nothing remains of it after both processes have ended. The sink
sends it to the source (memory_listener.py).
"""

from __future__ import annotations

import fcntl
import importlib.util
import mmap
import os
import socket
import sys

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.framing import Broken
from nextn.disaggregation.messages import Hello

BYTES = 8 << 20  # bytes of memory per connection, but at least two slots
BACKENDS = ("tcp", "shm", "nixl")


def check_backend(backend: str) -> None:
    """Raises ValueError if the backend is unknown or does not work here."""
    if backend not in BACKENDS:
        raise ValueError(f"transfer backend {backend}: choose from {', '.join(BACKENDS)}")
    if backend == "shm" and sys.platform != "linux":
        raise ValueError("--disaggregation-transfer-backend shm needs Linux; use tcp")
    if backend == "nixl" and importlib.util.find_spec("nixl") is None:
        raise ValueError(
            "--disaggregation-transfer-backend nixl: NIXL is not installed; pip install 'nextn[nixl]'"
        )


class Slots:
    """data: [slots, bytes per slot], uint8. free: used by the source only; the slots that the sink has
    read."""

    def __init__(self, data: NDArray[np.uint8]) -> None:
        self.data = data
        self.free = list(range(len(data)))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, slot: int) -> NDArray[np.uint8]:
        found: NDArray[np.uint8] = self.data[slot]
        return found


class SharedSlots(Slots):
    def __init__(self, file: int, slots: int, slot_bytes: int) -> None:
        data = np.frombuffer(mmap.mmap(file, slots * slot_bytes), np.uint8)
        super().__init__(data.reshape(slots, slot_bytes))


def slots_of(slot_bytes: int) -> int:
    return max(2, BYTES // slot_bytes)


def hand_in(hello: Hello, slot_bytes: int) -> SharedSlots:
    """Makes shared memory and hands it to the source that sent this Hello. Raises Broken."""
    slots = slots_of(slot_bytes)
    file = os.memfd_create("nextn-kv", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(file, slots * slot_bytes)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.setblocking(False)
            link.connect(b"\0" + hello.door.encode())
            socket.send_fds(link, [hello.key], [file])
        return SharedSlots(file, slots, slot_bytes)
    except OSError as error:
        raise Broken(
            f"no shared memory: the servers are not on one machine, or it is full: {error}"
        ) from None
    finally:
        os.close(file)
