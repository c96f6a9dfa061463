"""The only code that calls NIXL, a library that writes into another server's memory.

NIXL gets host memory only, and uses only its UCX backend, which chooses between RDMA, shared memory and TCP
by itself. NIXL's own progress thread is off because it would never sleep. So both ends call `progress` or
`done` while pages are in transfer. One thread uses an agent; any thread may make it.
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
REST = 60.0  # seconds before a region is used again
MOST_RESTING = 8  # resting regions; with more, the oldest is used again at once

# Memory of closed agents. It is never freed, because a late write could change data of a later owner.
_spare: list[NDArray[np.uint8]] = []


class Region(Slots):
    """Memory that is registered with an agent."""

    def __init__(self, data: NDArray[np.uint8], descriptors: Any) -> None:
        super().__init__(data)
        self.descriptors = descriptors

    @property
    def address(self) -> int:
        return int(self.data.ctypes.data)


class Agent:
    """All methods except `progress` and `close` may raise Broken. The constructor raises ValueError if NIXL
    does not work here."""

    def __init__(self) -> None:
        try:
            from nixl._api import nixl_agent, nixl_agent_config

            if "NIXL_LOG_LEVEL" not in os.environ:
                logging.getLogger("nixl").setLevel(logging.WARNING)  # it logs to stdout
            config = nixl_agent_config(enable_prog_thread=False, backends=BACKENDS)
            self._agent = nixl_agent(f"nextn-{secrets.token_hex(8)}", config)
            self._agent.get_backend_mem_types(BACKENDS[0])
        except Exception as error:
            raise ValueError(f"NIXL cannot be used: {_text(error)}") from error
        self._free: list[tuple[float, Region]] = []  # (time of `give_back`, region), oldest first
        self._peers = Counter[str]()

    def region(self, slots: int, slot_bytes: int) -> Region:
        """Returns registered memory. All regions of an agent must have the same size."""
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
        """The region may be used again after `REST` seconds. Late writes for its old connection could change
        pages of its next one, which would fail their checksum."""
        self._free.append((time.monotonic(), region))

    def metadata(self, region: Region) -> bytes:
        """Returns what another agent needs to write into this region."""
        with _broken("describing memory"):
            found: bytes = self._agent.get_partial_agent_metadata(region.descriptors, True, BACKENDS)
        return found

    def add(self, metadata: bytes) -> str:
        """Registers another agent and returns its name. Each `add` needs one `remove`."""
        with _broken("reading the other server's metadata"):
            name = self._agent.add_remote_agent(metadata)
            peer: str = name.decode() if isinstance(name, bytes) else str(name)
        self._peers[peer] += 1
        return peer

    def remove(self, peer: str) -> None:
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
            with _broken("removing the other server"):
                self._agent.remove_remote_agent(peer)

    def write(self, data: NDArray[np.uint8], peer: str, address: int) -> Any:
        """Starts a write from a region into another agent's memory. `done` says when it has ended."""
        with _broken("writing"):
            here = self._agent.get_xfer_descs([(data.ctypes.data, len(data), 0)], "DRAM")
            there = self._agent.get_xfer_descs([(address, len(data), 0)], "DRAM")
            handle = self._agent.initialize_xfer("WRITE", here, there, peer, backends=BACKENDS)
            if self._agent.transfer(handle) == "ERR":
                raise Broken("NIXL: a write failed")
        return handle

    def done(self, handle: Any) -> bool:
        """Whether the write has ended. Releases the handle then."""
        with _broken("writing"):
            state = self._agent.check_xfer_state(handle)
            if state == "ERR":
                raise Broken("NIXL: a write failed")
            if state == "DONE":
                self._agent.release_xfer_handle(handle)
        return bool(state == "DONE")

    def abandon(self, handle: Any) -> None:
        """Releases a write that has not ended and is no longer needed."""
        with _broken("releasing a write"):
            self._agent.release_xfer_handle(handle)

    def progress(self) -> None:
        """Does the work that other agents have requested of this one."""
        with contextlib.suppress(Exception):  # the other end notices the failure too
            self._agent.get_new_notifs(BACKENDS)

    def close(self) -> None:
        """Call it after all regions were given back."""
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
    except Exception as error:  # the names of NIXL's exceptions depend on its version
        raise Broken(f"NIXL, {doing}: {_text(error)}") from None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
