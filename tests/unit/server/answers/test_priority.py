"""A request's priority, from its body to the engine's request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small_tokenizer import write_small_tokenizer

from nextn.request import PromptGroup, Request
from nextn.server.answers.service import Service
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import add
from nextn.server.process.messages import Ready
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer


class KeepingEngine:
    def __init__(self) -> None:
        self.added: list[Request] = []

    def add(self, request: Request) -> None:
        self.added.append(request)


@pytest.mark.parametrize(
    ("option", "sign"), [("enable_priority_scheduling", 1), ("schedule_low_priority_values_first", -1)]
)
async def test_priority_arrives(tmp_path: Path, option: str, sign: int) -> None:
    client = EngineClient(ready=Ready(258, 1024, 2, {}, EngineStats()))
    tokenizer = Tokenizer.from_folder(write_small_tokenizer(tmp_path))
    service = Service(ServerConfig(**{option: True}), client, tokenizer)
    message: dict[str, Any] = {"role": "user", "content": "x"}
    made = [
        await service.completion(CompletionRequest(prompt="x", priority=3)),
        (await service.chat(ChatRequest(messages=[message], priority=3)))[0],
        (await service.generate(GenerateRequest(text="x", priority=3)))[0],
    ]
    engine = KeepingEngine()
    for generation in made:
        add(engine, None, {}, generation.choices[0].request, None, PromptGroup(), None)  # type: ignore[arg-type]
    assert [request.priority for request in engine.added] == [3 * sign] * 3
