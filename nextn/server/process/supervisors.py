"""Starts all engine processes of one server together. Each replica has a supervisor; all groups share one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import MakeEngine
from nextn.server.process.messages import Ready
from nextn.server.process.supervisor import EngineHandle, StartupError, Supervisor, end
from nextn.server_config import ServerConfig

log = logging.getLogger("nextn.server")

Handles = Sequence[EngineHandle]  # the engines of one supervisor


class Supervisors:
    def __init__(self, config: ServerConfig, clients: Sequence[EngineClient], make: MakeEngine) -> None:
        kept = [clients] if config.attention_dp > 1 else [[client] for client in clients]
        self.each = [Supervisor(config.of_replica(), together, make) for together in kept]

    def launch(self) -> list[Handles]:
        """Starts all processes; they are not ready yet."""
        return [supervisor.launch() for supervisor in self.each]

    async def ready(self, handles: Sequence[Handles]) -> list[Ready]:
        """Waits until all engines are loaded, and attaches them to their clients. Raises StartupError if one
        cannot start."""
        pairs = list(zip(self.each, handles, strict=True))
        waiting = [asyncio.ensure_future(supervisor.ready(its)) for supervisor, its in pairs]
        try:
            readies = await asyncio.gather(*waiting)
        finally:
            await end(waiting)
        for (supervisor, its), ready in zip(pairs, readies, strict=True):
            supervisor.attach(its, ready)
        return [ready for its in readies for ready in its]

    async def run(self, handles: Sequence[Handles]) -> None:
        """Serves with these engines, and restarts them when they die. An engine that dies too often stays
        down. Raises StartupError when no engine remains, so that the server ends."""
        left = {
            asyncio.ensure_future(supervisor.run(its)): supervisor.rank
            for supervisor, its in zip(self.each, handles, strict=True)
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
                            raise StartupError(f"{e}; the server ends") from e
                        log.error("replica %s stays down: %s; the others go on", rank, e)
        finally:
            await end(list(left))

    async def stop(self) -> None:
        await asyncio.gather(*(supervisor.stop() for supervisor in self.each))

    def kill(self) -> None:
        for supervisor in self.each:
            supervisor.kill()
