"""Large bodies are parsed elsewhere, and are data as small ones are."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from support.scripted_socket import ScriptedSocket, app_of

from nextn.server.answers.service import Service
from nextn.server.http import bodies
from nextn.server.http.bodies import LARGE_BODY
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import PIECE, Tokenizer

CONTEXT = 1024
COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
LONG = "x" * (CONTEXT + PIECE)
USER = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "f"}}

Posted = tuple[int, dict[str, Any]]


@pytest.fixture(scope="module")
def client(tokenizer: Tokenizer) -> EngineClient:
    engine = EngineClient()
    socket: Any = ScriptedSocket(engine, [104, 105], [1], None)
    engine.attach(Ready(tokenizer.vocab_size, CONTEXT, 2, {}, EngineStats()), socket)
    return engine


@pytest.fixture(scope="module")
def app(client: EngineClient, tokenizer: Tokenizer) -> Any:
    return app_of(ServerConfig(), Metrics(client), tokenizer)


async def post(app: Any, path: str, body: bytes) -> Posted:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
        answer = await http.post(path, content=body)
    data = answer.json()
    for each in data if isinstance(data, list) else [data]:
        for name in ("id", "created", "meta_info"):  # no two answers are the same in them
            each.pop(name, None)
    return answer.status_code, data


def padded(fields: dict[str, Any]) -> bytes:
    body = json.dumps(fields | {"padding": "x" * LARGE_BODY}).encode()
    assert len(body) > LARGE_BODY
    return body


@pytest.mark.parametrize(
    ("path", "fields", "status"),
    [
        (COMPLETIONS, {"prompt": "hello", "max_tokens": 2}, 200),
        (COMPLETIONS, {"prompt": ["a", "b"], "max_tokens": 2, "user": None}, 200),
        (COMPLETIONS, {"prompt": [5, 6], "max_tokens": 2, "speculative": {"num_steps": 1}}, 200),
        (COMPLETIONS, {"prompt": "a", "max_tokens": 2, "guided_regex": "a*", "logit_bias": {"5": 1}}, 200),
        (COMPLETIONS, {"prompt": "hello", "max_tokens": "2"}, 400),
        (COMPLETIONS, {"prompt": [5, 10**6]}, 400),
        (COMPLETIONS, {"prompt": [[5], [-1]]}, 400),
        (COMPLETIONS, {"prompt": [7] * (CONTEXT + 1)}, 400),
        (COMPLETIONS, {"prompt": [[7], []]}, 400),
        (COMPLETIONS, {"prompt": ["a", 5]}, 400),
        (COMPLETIONS, {"prompt": "a", "model": "other"}, 404),
        (COMPLETIONS, {"prompt": "a", "use_beam_search": True}, 400),
        (COMPLETIONS, {}, 400),
        (CHAT, {"messages": [USER, {"role": "user", "content": 5}]}, 400),
        (CHAT, {"messages": [USER], "tools": [TOOL, {}]}, 400),
        (GENERATE, {"text": "hello", "sampling_params": {"max_new_tokens": 2}}, 200),
        (GENERATE, {"input_ids": [[5], [6]], "sampling_params": {"max_new_tokens": 2}}, 200),
        (GENERATE, {"input_ids": "x"}, 400),
        (GENERATE, {"text": "a", "sampling_params": {"made_up": 1}}, 400),
        ("/tokenize", {"prompt": "hello"}, 200),
        ("/tokenize", {"prompt": "a", "messages": [USER]}, 400),
        ("/detokenize", {"tokens": [104, 105]}, 200),
        ("/detokenize", {"tokens": [[104], ["a"]]}, 400),
        ("/set_internal_state", {"server_args": {"made_up": 1}}, 400),
        ("/abort_request", {}, 400),
    ],
)  # fmt: skip
async def test_a_large_body_is_answered_like_a_small_one(
    app: Any, path: str, fields: dict[str, Any], status: int
) -> None:
    small = await post(app, path, json.dumps(fields).encode())
    assert small[0] == status, small
    assert await post(app, path, padded(fields)) == small


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (COMPLETIONS, {"prompt": LONG}),
        (COMPLETIONS, {"prompt": ["a", "é" * PIECE]}),
        (COMPLETIONS, {"prompt": [[7] * 10, [7] * (CONTEXT + 1)]}),
        (COMPLETIONS, {"prompt": [7] * CONTEXT}),  # no room for an answer
        (CHAT, {"messages": [USER, {"role": "user", "content": LONG}]}),
        (GENERATE, {"text": LONG}),
        (GENERATE, {"input_ids": [[7] * (CONTEXT + 1)]}),
    ],
)
async def test_refused_early_or_late(
    app: Any, path: str, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    early = await post(app, path, padded(fields))
    monkeypatch.setattr(Service, "bound", lambda service: None)
    late = await post(app, path, padded(fields))
    assert early == late
    *_, field = fields
    assert (early[0], early[1]["error"]["param"]) == (400, field)


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (COMPLETIONS, {"prompt": "x", "max_tokens": CONTEXT}, "max_tokens"),
        (COMPLETIONS, {"prompt": "x", "max_completion_tokens": CONTEXT}, "max_completion_tokens"),
        (CHAT, {"messages": [USER], "max_tokens": CONTEXT}, "max_tokens"),
        (CHAT, {"messages": [USER], "max_completion_tokens": CONTEXT}, "max_completion_tokens"),
        (GENERATE, {"text": "x", "sampling_params": {"max_new_tokens": CONTEXT}},
         "sampling_params.max_new_tokens"),
        (COMPLETIONS, {"prompt": "x" * CONTEXT}, "prompt"),
        (CHAT, {"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
        (GENERATE, {"text": "x" * CONTEXT}, "text"),
        (GENERATE, {"input_ids": [5] * CONTEXT}, "input_ids"),
    ],
)  # fmt: skip
async def test_what_does_not_fit_is_named_as_the_client_named_it(
    app: Any, path: str, fields: dict[str, Any], param: str
) -> None:
    status, data = await post(app, path, json.dumps(fields).encode())
    assert (status, data["error"]["code"]) == (400, "context_length_exceeded")
    assert data["error"]["param"] == param
    assert param.startswith(("prompt", "text", "input", "messages")) or param in data["error"]["message"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"prompt": "' + b"x" * LARGE_BODY, "not valid JSON"),
        (b'"' + b"x" * LARGE_BODY + b'"', "must be a JSON object"),
        (b'{"prompt": [' + b"[]," * 2**18 + b"5]}", "more than 1048576 values, or 131072 lists"),
    ],
)
async def test_what_is_no_request(app: Any, body: bytes, message: str) -> None:
    status, answer = await post(app, COMPLETIONS, body)
    assert status == 400
    assert message in answer["error"]["message"]


async def test_a_large_body_is_not_parsed_here(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """But in a process that has no patch."""

    def parse(*anything: object) -> None:
        raise AssertionError

    monkeypatch.setattr(bodies, "parse", parse)
    monkeypatch.setattr(bodies, "check_values", parse)
    assert (await post(app, COMPLETIONS, padded({"prompt": "hello", "max_tokens": 2})))[0] == 200
    with pytest.raises(AssertionError):
        await post(app, COMPLETIONS, b'{"prompt": "hello"}')


async def test_without_an_engine(tokenizer: Tokenizer) -> None:
    """Nothing is known of what fits."""
    app = app_of(ServerConfig(), Metrics(EngineClient()), tokenizer)
    status, answer = await post(app, COMPLETIONS, padded({"prompt": LONG}))
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
