"""A TCP proxy that acts like a bad network: it delays, cuts into pieces, stalls, closes and resets.

async with ChaosProxy(server_address, random.Random(0)) as proxy:
    ... proxy.address ...
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import random
import socket
import struct
from types import TracebackType

from client import Address

FATES = ("clean", "delayed", "pieces", "closed", "reset", "stalled")
STALL_SECONDS = 1.0


class ChaosProxy:
    """The proxy. Each connection gets one of FATES at random; `fates` counts them."""

    def __init__(self, server: Address, rng: random.Random) -> None:
        self.server, self.rng = server, rng
        self.fates: collections.Counter[str] = collections.Counter()
        self.address: Address = ("", 0)
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ChaosProxy:
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", 0, backlog=1024)
        self.address = self._listener.sockets[0].getsockname()[:2]
        return self

    async def __aexit__(
        self, kind: type | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fate = self.rng.choice(FATES)
        self.fates[fate] += 1
        upper_reader, upper_writer = await asyncio.open_connection(*self.server)
        up, down = self.rng.randrange(10**6), self.rng.randrange(10**6)
        ways = {
            asyncio.ensure_future(self._pass_on(reader, upper_writer, fate, random.Random(up))),
            asyncio.ensure_future(self._pass_on(upper_reader, writer, fate, random.Random(down))),
        }
        try:
            # The end of one direction ends the connection.
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            for each in (upper_writer, writer):
                if fate == "reset":
                    reset(each)
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, fate: str, rng: random.Random
    ) -> None:
        left = rng.randrange(2000) if fate in ("closed", "reset", "stalled") else -1
        while part := await reader.read(rng.randrange(1, 8) if fate == "pieces" else 65536):
            if fate == "delayed":
                await asyncio.sleep(rng.random() * 0.05)
            if 0 <= left < len(part):
                writer.write(part[:left])
                if fate == "stalled":
                    await asyncio.sleep(STALL_SECONDS)
                return
            left = left - len(part) if left >= 0 else left
            writer.write(part)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def reset(writer: asyncio.StreamWriter) -> None:
    """Makes the connection end with an RST instead of a FIN."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
