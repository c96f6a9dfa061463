"""Stands for the socket to the engine process: keeps the messages that were sent."""

from __future__ import annotations

from nextn.server.process.messages import Abort, Add, decode_to_engine


class EngineSocket:
    def __init__(self) -> None:
        self.sent: list[Add | Abort] = []

    def send(self, data: bytes) -> None:
        self.sent.append(decode_to_engine(data))
