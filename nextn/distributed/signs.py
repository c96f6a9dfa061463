"""Heartbeats over sockets, between ranks on several machines: see `nextn.distributed.pulse`."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Mapping

BEAT = b"."


class Signs:
    """sockets: connected sockets to the ranks that this one watches, by rank. Takes them over."""

    def __init__(self, sockets: Mapping[int, socket.socket]) -> None:
        self._sockets = sockets
        self._counts: dict[int, int | None] = dict.fromkeys(sockets, 0)
        for end in sockets.values():
            end.setblocking(False)

    def beat(self) -> None:
        """Sends a heartbeat to the others."""
        for end in self._sockets.values():
            with contextlib.suppress(OSError):  # it has ended, or does not read: `beats` tells
                end.send(BEAT)

    def beats(self) -> Mapping[int, int | None]:
        """The number of heartbeats of each rank that this one watches; None: it has ended."""
        for rank, end in self._sockets.items():
            count = self._counts[rank]
            if count is not None:
                try:
                    read = len(end.recv(4096))
                    self._counts[rank] = count + read if read else None
                except BlockingIOError:
                    pass
                except OSError:
                    self._counts[rank] = None
        return dict(self._counts)

    def close(self) -> None:
        for end in self._sockets.values():
            end.close()
