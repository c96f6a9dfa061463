"""What is checked before a request goes to the engine."""

from __future__ import annotations

import pytest

from nextn.config import ServerConfig
from nextn.scheduler.stats import EngineStats
from nextn.server.engine_client import EngineClient
from nextn.server.errors import ApiError
from nextn.server.messages import Ready
from nextn.server.metrics import Metrics
from nextn.server.protocol import CompletionRequest
from nextn.server.service import Service, check_messages


class NoTokenizer:
    """Fails at whatever is asked of it."""


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("prompt", ["x", [-1]], ids=["text", "token ids"])
async def test_too_many_choices_cost_nothing(prompt: object, n: int) -> None:
    """Neither encoded nor checked one by one, which would stop the whole server for a minute."""
    metrics = Metrics(40)
    engine = EngineClient(metrics, ready=Ready(258, 1024, 2, {}, EngineStats()))
    config = ServerConfig(max_running_requests=2, max_queued_requests=8)
    service = Service(config, engine, metrics, NoTokenizer())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=f"asks for {11 * n} choices; .* is 10") as error:
        await service.completion(CompletionRequest(prompt=[prompt] * 11, n=n))
    assert error.value.status == 400


def test_an_answer_goes_back_as_a_message() -> None:
    """openai's model_dump() writes out the fields that an answer did not have."""
    said = {"role": "assistant", "content": "hi", "refusal": None, "function_call": None}
    for nothing in (None, []):
        check_messages([{**said, "tool_calls": nothing}])
    with pytest.raises(ApiError, match=r"messages\[0\]: tools are not supported"):
        check_messages([{**said, "tool_calls": [{"id": "a"}]}])
