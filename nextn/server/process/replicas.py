"""Several engine processes behind one port. Each request goes to one process, each command to all."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import TypeVar

from nextn.expert_load import ExpertRecord
from nextn.request import SpeculativeParams
from nextn.server.process.dispatch import Dispatch, groups_of
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.inbox import Update, Updates
from nextn.server.process.messages import NewRequest, Ready, RecordAction
from nextn.server.protocol.errors import ApiError, no_engine

Answer = TypeVar("Answer")


class Replicas:
    """`Engines` for several engine processes. They can differ only in the size of the KV pool."""

    def __init__(
        self, ranks: Sequence[EngineClient], dispatch: Dispatch, request_timeout: float | None = None
    ) -> None:
        self.ranks, self.dispatch, self.request_timeout = ranks, dispatch, request_timeout

    @property
    def ready(self) -> Ready | None:
        """The facts of the engine with the shortest context, because a request may go to any engine. None if
        all are down."""
        up = [client.ready for client in self.ranks if client.ready is not None]
        return min(up, key=lambda ready: ready.context_length, default=None)

    @property
    def active(self) -> int:
        return sum(client.active for client in self.ranks)

    @property
    def waiting(self) -> int:
        return sum(client.waiting for client in self.ranks)

    @property
    def speculative_defaults(self) -> SpeculativeParams:
        return self.ranks[0].speculative_defaults

    def submit(
        self,
        requests: list[NewRequest],
        queue: Updates,
        names: Sequence[str] | None = None,
        rank: int | None = None,
    ) -> None:
        """rank: the replica that the client requested, or None. If it is down, the update is an error."""
        if self.ready is None:
            for request in requests:
                queue.put_nowait(Update(request.rid, no_engine()))
            return
        groups = groups_of(requests)
        name = dict(zip((r.rid for r in requests), names or [r.rid for r in requests], strict=True))
        parts: dict[int, list[NewRequest]] = {}
        for group, at in zip(groups, self.dispatch.assign(groups, rank), strict=True):
            parts.setdefault(at, []).extend(group)
        for at, part in parts.items():
            self.ranks[at].submit(part, queue, [name[r.rid] for r in part])

    def abort(self, rid: str) -> bool:
        return any(client.abort(rid) for client in self.ranks)

    def end(self, beginning: str) -> None:
        for client in self.ranks:
            client.end(beginning)

    def fail_all(self, error: ApiError) -> None:
        for client in self.ranks:
            client.fail_all(error)

    async def set_speculative_defaults(self, defaults: SpeculativeParams) -> None:
        await self._all(lambda client: client.set_speculative_defaults(defaults))
        for client in self.ranks:  # engines that are down get the defaults when they start
            client.speculative_defaults = defaults

    async def flush_cache(self) -> None:
        if self.active:
            raise ValueError("requests are running or waiting")
        self.dispatch.forget()
        await self._all(EngineClient.flush_cache)

    async def record_experts(self, action: RecordAction) -> list[ExpertRecord]:
        records = await self._all(lambda client: client.record_experts(action))
        if action != "dump":
            for client in self.ranks:  # engines that are down begin when they start
                client.recording = action == "start"
        return [record for each in records for record in each]

    async def _all(self, call: Callable[[EngineClient], Coroutine[None, None, Answer]]) -> list[Answer]:
        """Makes the call to all engines that are up, and returns their answers. An engine that ends before it
        answers is ignored, because it restarts with the new state. Raises its ApiError only if no engine
        answers; raises other errors."""
        up = [client for client in self.ranks if client.ready is not None]
        ended = await asyncio.gather(*map(call, up), return_exceptions=True)
        errors = [error for error in ended if isinstance(error, BaseException)]
        for error in errors:
            if not isinstance(error, ApiError) or len(errors) == len(up):
                raise error
        return [found for found in ended if not isinstance(found, BaseException)]
