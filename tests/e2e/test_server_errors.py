"""Bad input of every kind: the status, OpenAI's shape, the message; and the server goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.server_process import ServerProcess

from nextn.server.protocol.native import GenerateRequest, NativeSampling
from nextn.server.protocol.openai import ChatRequest, CompletionRequest


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


CASES: list[tuple[str, object, int, str]] = [
    ("/v1/completions", {"prompt": "x" * 2000}, 400,
     "the prompt has 2001 tokens, the context length is 1024"),
    ("/v1/completions", {"prompt": "x" * 1023}, 400,
     "the prompt has 1024 tokens, the context length is 1024; that leaves no room for an answer"),
    ("/v1/completions", {"prompt": "x" * 999, "max_tokens": 25}, 400,
     "the prompt has 1000 tokens and max_tokens is 25, 1025 together; the context length is 1024"),
    ("/v1/completions", {"prompt": ""}, 400, "prompt is empty"),
    ("/v1/completions", {}, 400, "prompt is missing"),
    ("/v1/completions", {"prompt": [0, 258]}, 400, "prompt: token id 258 is outside the vocabulary 0..257"),
    ("/v1/completions", {"prompt": [-1]}, 400, "prompt: token id -1 is outside"),
    ("/v1/completions", {"prompt": [10**40]}, 400, "prompt: token id 1000"),
    ("/v1/completions", {"prompt": "x", "temperature": -1}, 400, "temperature is -1.0"),
    ("/v1/completions", {"prompt": "x", "max_tokens": 0}, 400, "max_tokens is 0"),
    ("/v1/completions", {"prompt": "x", "max_tokens": "9"}, 400, "max_tokens: "),
    ("/v1/completions", {"prompt": "x", "logit_bias": {"5": 101}}, 400, "logit_bias is {5: 101.0}"),
    ("/v1/completions", {"prompt": "x", "logprobs": 21}, 400, "logprobs: Input should be less than"),
    ("/v1/completions", {"prompt": "x", "stop": ["a"] * 17}, 400, "stop: it has 17 strings"),
    ("/v1/completions", {"prompt": ["x"] * 600}, 400, "the request asks for 600 choices"),
    ("/v1/completions", {"prompt": "x", "model": "gpt-4"}, 404, "the model 'gpt-4' does not exist"),
    ("/v1/completions", {"prompt": [7]}, 400, "a prompt may not begin with token 7 here"),
    ("/v1/completions", {"prompt": [[8], [7]], "stream": True}, 400, "a prompt may not begin with token 7"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages is empty"),
    ("/v1/chat/completions", {"messages": "hi"}, 400, "messages: "),
    ("/v1/chat/completions", {"messages": [{"role": "user"}]}, 400, "messages[0].content is missing"),
    ("/v1/chat/completions", {"messages": [{"content": "x"}]}, 400, "messages[0].role must be a string"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400,
     "messages[0].content[0] is of type 'image_url'"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, 400,
     "tools[0].function is missing"),
    ("/v1/chat/completions",
     {"messages": [{"role": "user", "content": "x"}], "tools": [{"function": {"name": "f"}}]}, 400,
     "tools are not supported by this server: it was started without --tool-call-parser"),
    ("/v1/completions", {"prompt": "x", "priority": 1}, 400,
     "priority is 1; this server has no priorities: it was started without --enable-priority-scheduling"),
    ("/v1/chat/completions",
     {"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}, 400,
     "response_format.type must be text, json_object"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 2000}]}, 400,
     "the prompt has 2008 tokens, the context length is 1024"),
    ("/generate", {}, 400, "give either text or input_ids"),
    ("/generate", {"text": "x" * 999, "sampling_params": {"max_new_tokens": 25}}, 400,
     "the prompt has 1000 tokens and sampling_params.max_new_tokens is 25, 1025 together; the context"),
    ("/generate", {"input_ids": [0, 258]}, 400, "prompt: token id 258 is outside the vocabulary 0..257"),
    ("/generate", {"input_ids": [7]}, 400, "a prompt may not begin with token 7 here"),
    ("/generate", {"text": ["x"] * 600}, 400, "the request asks for 600 choices"),
    ("/generate", {"text": "x", "sampling_params": {"stop_regex": "("}}, 400,
     "sampling_params.stop_regex: '(' is not a regular expression that can be used: regex parse error"),
    ("/set_internal_state", {"server_args": {"tp_size": 2}}, 400, "server_args.tp_size is not known"),
    ("/v1/nothing", {}, 404, "POST /v1/nothing: Not Found"),
    ("/health", {}, 405, "POST /health: Method Not Allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "status", "message"), CASES, ids=[c[3][:40] for c in CASES])
def test_bad_input(scripted: ServerProcess, path: str, body: object, status: int, message: str) -> None:
    response = httpx.post(scripted.url + path, json=body)
    assert response.status_code == status, response.text
    error = error_of(response)
    assert error["message"].startswith(message)
    assert error["type"] == "invalid_request_error"
    assert scripted.metrics()["nextn:num_running_reqs"] == 0


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 2**65)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=5,
)
fields = st.sampled_from(sorted({*CompletionRequest.model_fields, *ChatRequest.model_fields} - {"model"}))


native_fields = st.sampled_from(sorted(GenerateRequest.model_fields))
sampling_fields = st.sampled_from(sorted(NativeSampling.model_fields))


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=30) as client:
        yield client


@settings(max_examples=40, deadline=None, derandomize=True)
@given(path=st.sampled_from(["completions", "chat/completions"]), body=st.dictionaries(fields, json_values))
def test_hostile_bodies(scripted: ServerProcess, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    """Whatever is in it, an answer or a 400; the engine lives on and nothing stays in it."""
    base = {"prompt": "x", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4}
    check_alive(scripted, http, f"/v1/{path}", base | body)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    body=st.dictionaries(native_fields, json_values), sampling=st.dictionaries(sampling_fields, json_values)
)
def test_hostile_native_bodies(
    scripted: ServerProcess, http: httpx.Client, body: dict[str, Any], sampling: dict[str, Any]
) -> None:
    base = {"text": "x", "sampling_params": {"max_new_tokens": 4} | sampling}
    check_alive(scripted, http, "/generate", base | body)


def check_alive(scripted: ServerProcess, http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    response = http.post(scripted.url + path, json=body)
    assert response.status_code in (200, 400), response.text
    if response.status_code == 400:
        assert error_of(response)["message"]
    assert http.get(scripted.url + "/health").status_code == 200


def test_codes(scripted: ServerProcess) -> None:
    unknown = httpx.post(scripted.url + "/v1/completions", json={"prompt": "x", "model": "m"})
    assert error_of(unknown)["code"] == "model_not_found"
    long = httpx.post(scripted.url + "/v1/completions", json={"prompt": "x" * 2000})
    assert error_of(long)["code"] == "context_length_exceeded"


@pytest.mark.parametrize("body", [b"", b"{", b'{"prompt": "\\ud83d"}', b"[" * 10_000, b"\xff"])
def test_not_json(scripted: ServerProcess, body: bytes) -> None:
    response = httpx.post(scripted.url + "/v1/completions", content=body)
    assert response.status_code == 400
    assert "the body is not valid JSON" in error_of(response)["message"]


def test_body_too_long(scripted: ServerProcess) -> None:
    def parts() -> Any:
        for _ in range(33):
            yield b" " * 2**20

    for content in (b" " * (32 * 2**20 + 1), parts()):
        response = httpx.post(scripted.url + "/v1/completions", content=content, timeout=30)
        assert response.status_code == 413
        assert "longer than 33554432 bytes" in error_of(response)["message"]


def test_openai_client_raises_its_own_errors(scripted: ServerProcess) -> None:
    client = openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0)
    with pytest.raises(openai.BadRequestError, match="top_p is 7"):
        client.completions.create(model="scripted", prompt="x", top_p=7)
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")
