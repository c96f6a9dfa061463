"""The engine processes of one server: started together, and each kept by a supervisor of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import MakeEngine
from nextn.server.process.messages import Ready
from nextn.server.process.supervisor import EngineHandle, StartupError, Supervisor
from nextn.server_config import ServerConfig

log = logging.getLogger("nextn.server")


class Supervisors:
    def __init__(self, config: ServerConfig, clients: Sequence[EngineClient], make: MakeEngine) -> None:
        self.each = [Supervisor(config.of_replica(), client, make) for client in clients]

    def launch(self) -> list[EngineHandle]:
        """Starts all processes; they are not ready yet."""
        return [supervisor.launch() for supervisor in self.each]

    async def ready(self, handles: Sequence[EngineHandle]) -> list[Ready]:
        """Waits for all, and lets them serve. Raises StartupError if one cannot start."""
        waiting = [asyncio.ensure_future(handle.ready()) for handle in handles]
        try:
            readies = await asyncio.gather(*waiting)
        finally:
            await end(waiting)
        for supervisor, handle, ready in zip(self.each, handles, readies, strict=True):
            supervisor.client.attach(ready, handle.socket)
        return readies

    async def keep(self, handles: Sequence[EngineHandle]) -> None:
        """Serves with these engines and their successors. One that dies too often stays down. Raises
        StartupError when none is left, so that whoever watches this server notices."""
        left = {
            asyncio.ensure_future(supervisor.keep(handle)): supervisor.client.rank
            for supervisor, handle in zip(self.each, handles, strict=True)
        }
        try:
            while True:
                done, _ = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    rank = left.pop(task)
                    try:
                        task.result()
                    except StartupError as e:
                        if not left:
                            raise StartupError(f"{e}; the server ends", e.mistake) from e
                        log.error("replica %s stays down: %s; the others go on", rank, e)
        finally:
            await end(list(left))

    async def stop(self) -> None:
        await asyncio.gather(*(supervisor.stop() for supervisor in self.each))

    def kill(self) -> None:
        for supervisor in self.each:
            supervisor.kill()


async def end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
