"""The server's interface to its engine: one process (`EngineClient`), or several (`Replicas`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from nextn.expert_load import ExpertRecord
from nextn.request import SpeculativeParams
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.inbox import Updates
from nextn.server.process.messages import NewRequest, Ready, RecordAction
from nextn.server.protocol.errors import ApiError


class Engines(Protocol):
    """The interface. `EngineClient` documents each method."""

    request_timeout: float | None

    @property
    def ranks(self) -> Sequence[EngineClient]:
        """The client of each engine process, by dp_rank."""

    @property
    def ready(self) -> Ready | None:
        """Facts and limits that hold for each request. None while no engine can serve."""

    @property
    def active(self) -> int: ...

    @property
    def waiting(self) -> int: ...

    @property
    def speculative_defaults(self) -> SpeculativeParams: ...

    def submit(
        self,
        requests: list[NewRequest],
        queue: Updates,
        names: Sequence[str] | None = None,
        rank: int | None = None,
    ) -> None: ...

    def abort(self, rid: str) -> bool: ...

    def end(self, beginning: str) -> None: ...

    def fail_all(self, error: ApiError) -> None: ...

    async def set_speculative_defaults(self, defaults: SpeculativeParams) -> None: ...

    async def flush_cache(self) -> None: ...

    async def record_experts(self, action: RecordAction) -> list[ExpertRecord]: ...
