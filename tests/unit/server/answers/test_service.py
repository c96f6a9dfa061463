"""What is checked before a request goes to the engine."""

from __future__ import annotations

import pytest

from nextn.scheduler.stats import EngineStats
from nextn.server.answers.service import Service
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.openai import CompletionRequest
from nextn.server_config import ServerConfig


class NoTokenizer:
    """Fails at whatever is asked of it."""


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("prompt", ["x", [-1]], ids=["text", "token ids"])
async def test_too_many_choices_cost_nothing(prompt: object, n: int) -> None:
    """Neither encoded nor checked one by one, which would stop the whole server for a minute."""
    engine = EngineClient(ready=Ready(258, 1024, 2, {}, EngineStats()))
    config = ServerConfig(max_running_requests=2, max_queued_requests=8)
    service = Service(config, engine, NoTokenizer())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=f"asks for {11 * n} choices; .* is 10") as error:
        await service.completion(CompletionRequest(prompt=[prompt] * 11, n=n))
    assert error.value.status == 400


def priority(asked: int, **options: bool) -> int:
    service = Service(ServerConfig(**options), EngineClient(), NoTokenizer())  # type: ignore[arg-type]
    return service._priority(asked)


def test_priorities_mean_what_the_server_was_started_with() -> None:
    assert priority(0) == 0
    assert priority(5, enable_priority_scheduling=True) == 5
    assert priority(5, schedule_low_priority_values_first=True) == -5
    with pytest.raises(ApiError, match=r"priority is -5; .* without --enable-priority-scheduling"):
        priority(-5)
