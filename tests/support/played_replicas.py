"""Replicas without processes. Stand-ins for the engines' ends of the sockets keep what they receive and
answer with `on`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nextn.server.process.dispatch import Dispatch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Add, FromEngine, NewRequest, Ready, decode_to_engine, requests_of
from nextn.server.process.replicas import Replicas
from nextn.stats import EngineStats


class Played:
    """One engine. It is ready from the beginning; `restart` replaces it by a new one."""

    def __init__(self, client: EngineClient, context: int = 1024, transfer_port: int = 0) -> None:
        self.client, self.context, self.transfer_port = client, context, transfer_port
        self.received: list[Any] = []
        self.on: Callable[[Any], FromEngine | None] = lambda message: None
        self.restart()

    def restart(self) -> None:
        stats = EngineStats(total_tokens=4096)
        ready = Ready(258, self.context, 2, {}, stats, self.transfer_port)
        self.client.attach(ready, self)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        message = decode_to_engine(data)
        self.received.append(message)
        answer = self.on(message)
        if answer is not None:
            self.client.receive(answer)

    @property
    def requests(self) -> list[NewRequest]:
        """The requests that it has received."""
        adds = [message for message in self.received if isinstance(message, Add)]
        return [request for add in adds for request in requests_of(add)]

    @property
    def rids(self) -> list[str]:
        return [request.rid for request in self.requests]


def played_replicas(count: int, method: str = "prefix", cached: bool = True) -> tuple[Replicas, list[Played]]:
    clients = [EngineClient(rank=rank) for rank in range(count)]
    replicas = Replicas(clients, Dispatch(clients, method, cached))
    return replicas, [Played(client) for client in clients]
