"""What is called of NIXL, the library that writes into another server's memory.

Only host memory is given to it, and only its UCX backend is used, which chooses between RDMA, shared memory
and TCP by itself. It has no thread here: that one would never sleep. So both ends call `progress` or `done`
while pages are under way. All but making an agent is of one thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nextn.disaggregation.framing import Broken
from nextn.disaggregation.memory import Slots

BACKENDS = ["UCX"]
REST = 60.0  # seconds
MOST_RESTING = 8  # regions

# Memory of agents that are gone. It is never given back to the system: a write that comes late could
# otherwise change what somebody else put there.
_spare: list[NDArray[np.uint8]] = []


class Region(Slots):
    """Memory that an agent has registered."""

    def __init__(self, data: NDArray[np.uint8], descriptors: Any) -> None:
        super().__init__(data)
        self.descriptors = descriptors

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


class Agent:
    """Each method but `progress` and `close` raises Broken; making one raises ValueError."""

    def __init__(self) -> None:
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            if "NIXL_LOG_LEVEL" not in os.environ:
                logging.getLogger("nixl").setLevel(logging.WARNING)  # it prints to stdout
            config = nixl_agent_config(enable_prog_thread=False, backends=BACKENDS)
            self._agent = nixl_agent(f"nextn-{secrets.token_hex(8)}", config)
            self._agent.get_backend_mem_types(BACKENDS[0])
        except Exception as error:
            raise ValueError(f"NIXL does not work here: {_text(error)}") from error
        self._free: list[tuple[float, Region]] = []  # since when, the one that rests longest first
        self._peers = Counter[str]()

    def region(self, slots: int, slot_bytes: int) -> Region:
        """Registered, and used again after `give_back`. All of an agent are of one size."""
        if self._free and (len(self._free) > MOST_RESTING or time.monotonic() - self._free[0][0] > REST):
            _, region = self._free.pop(0)
            region.free = list(range(slots))
            return region
        size = slots * slot_bytes
        fitting = [i for i, data in enumerate(_spare) if data.size == size]
        data = _spare.pop(fitting[0]) if fitting else np.zeros(size, np.uint8)
        data = data.reshape(slots, slot_bytes)
        with _broken("registering memory"):
            place = [(data.ctypes.data, data.nbytes, 0, "")]
            return Region(data, self._agent.register_memory(place, "DRAM", backends=BACKENDS))

    def give_back(self, region: Region) -> None:
        """Writes of the connection that it was for may come still. They do no harm to a new one but that its
        pages may be found to be changed; so the region rests first."""
        self._free.append((time.monotonic(), region))

    def metadata(self, region: Region) -> bytes:
        """What another agent needs to write there."""
        with _broken("describing memory"):
            found: bytes = self._agent.get_partial_agent_metadata(region.descriptors, True, BACKENDS)
        return found

    def add(self, metadata: bytes) -> str:
        """Another agent's name, to be removed once for each time it was added."""
        with _broken("reading what the other end says of its memory"):
            name = self._agent.add_remote_agent(metadata)
            peer: str = name.decode() if isinstance(name, bytes) else str(name)
        self._peers[peer] += 1
        return peer

    def remove(self, peer: str) -> None:
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
            with _broken("leaving"):
                self._agent.remove_remote_agent(peer)

    def write(self, data: NDArray[np.uint8], peer: str, address: int) -> Any:
        """Begins to write bytes of a region to another agent's memory. `done` says when it is over."""
        with _broken("writing"):
            here = self._agent.get_xfer_descs([(data.ctypes.data, len(data), 0)], "DRAM")
            there = self._agent.get_xfer_descs([(address, len(data), 0)], "DRAM")
            handle = self._agent.initialize_xfer("WRITE", here, there, peer, backends=BACKENDS)
            if self._agent.transfer(handle) == "ERR":
                raise Broken("NIXL: a write failed")
        return handle

    def done(self, handle: Any) -> bool:
        """Whether the bytes are there."""
        with _broken("writing"):
            state = self._agent.check_xfer_state(handle)
            if state == "ERR":
                raise Broken("NIXL: a write failed")
            if state == "DONE":
                self._agent.release_xfer_handle(handle)
        return bool(state == "DONE")

    def abandon(self, handle: Any) -> None:
        """A write that is not done and of no more use."""
        with _broken("ending a write"):
            self._agent.release_xfer_handle(handle)

    def progress(self) -> None:
        """Does what other agents ask of this one."""
        with contextlib.suppress(Exception):  # what fails of it, fails at the other end, too
            self._agent.get_new_notifs(BACKENDS)

    def close(self) -> None:
        """When all was given back."""
        with contextlib.suppress(Exception):
            for _, region in self._free:
                self._agent.deregister_memory(region.descriptors, BACKENDS)
        _spare.extend(region.data.reshape(-1) for _, region in self._free)
        self._free = []
        del self._agent


@contextlib.contextmanager
def _broken(doing: str) -> Iterator[None]:
    try:
        yield
    except Broken:
        raise
    except Exception as error:  # the library's own kinds are named differently in each version
        raise Broken(f"NIXL, {doing}: {_text(error)}") from None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
