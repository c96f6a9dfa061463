"""The API as clients see it, through the openai client where it can say it and httpx where it cannot."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from support.scripted_engine import TEXT
from support.server_process import ServerProcess

BYTES = TEXT.encode()
PROMPT = "def f():"  # 8 tokens and BOS


@pytest.fixture(scope="module")
def client(scripted: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=scripted.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def post(server: ServerProcess, path: str, body: object, **options: Any) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=30, **options)


def text_of(tokens: int, begin: int = 0) -> str:
    """What the scripted engine answers: one token is one byte."""
    return (BYTES * 40)[begin : begin + tokens].decode(errors="replace")


def test_completion(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt=PROMPT, max_tokens=32, temperature=0)
    (choice,) = answer.choices
    assert (choice.text, choice.finish_reason, choice.index) == (text_of(32), "length", 0)
    assert answer.object == "text_completion"
    assert answer.model == "scripted"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (
        9,
        32,
        41,
    )
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_max_tokens_defaults_to_16(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt=PROMPT, temperature=0)
    assert answer.choices[0].text == text_of(16)


@pytest.mark.parametrize("usage", [False, True])
def test_streamed_completion(client: openai.OpenAI, usage: bool) -> None:
    options: dict[str, Any] = {"stream_options": {"include_usage": True}} if usage else {}
    chunks = list(
        client.completions.create(
            model="scripted", prompt=PROMPT, max_tokens=70, temperature=0, stream=True, **options
        )
    )
    shown = [chunk for chunk in chunks if chunk.choices]
    assert "".join(chunk.choices[0].text for chunk in shown) == text_of(70)
    assert [chunk.choices[0].finish_reason for chunk in shown] == [None] * (len(shown) - 1) + ["length"]
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.usage is None for chunk in shown)
    if usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 70
    else:
        assert len(shown) == len(chunks)


def test_continuous_usage(scripted: ServerProcess) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    body = {"prompt": PROMPT, "max_tokens": 9, "stream": True, "stream_options": options, "temperature": 0}
    events = post(scripted, "/v1/completions", body).text.split("\n\n")
    counts = [json.loads(e.removeprefix("data: "))["usage"]["completion_tokens"] for e in events[:-2]]
    assert counts[-2:] == [9, 9]
    assert set(counts) <= {3, 6, 9}  # steps that are ready together are one event
    assert counts == sorted(counts)
    assert events[-2:] == ["data: [DONE]", ""]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model="scripted",
        messages=[{"role": "user", "content": "hi"}],
        max_completion_tokens=20,
        temperature=0,
    )
    (choice,) = answer.choices
    assert choice.message.content == text_of(20)
    assert (choice.message.role, choice.finish_reason) == ("assistant", "length")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hi\n") + 1
    assert answer.object == "chat.completion"


def test_streamed_chat(client: openai.OpenAI) -> None:
    chunks = list(
        client.chat.completions.create(
            model="scripted", messages=[{"role": "developer", "content": "hi"}], max_tokens=20, temperature=0,
            stream=True, stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == text_of(20)
    assert chunks[-2].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.prompt_tokens == len("system: hi\n") + 1


def test_chat_fills_the_context_by_default(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "hi"}])
    assert answer.usage is not None
    assert answer.usage.total_tokens == 1024


@pytest.mark.parametrize(
    ("stop", "found"),
    [("return", "return"), (["nowhere", "a, b"], "a, b"), ("Ключ", "Ключ"), (["€uro", "€"], "€")],
)
def test_stop_strings(scripted: ServerProcess, stop: object, found: str) -> None:
    """Cut inside an accepted run, and the tokens counted up to the one that completed it."""
    text = TEXT[: TEXT.index(found)]
    tokens = len((text + found).encode())
    body = {"prompt": PROMPT, "max_tokens": 200, "temperature": 0, "stop": stop}
    answer = post(scripted, "/v1/completions", body).json()
    assert answer["choices"][0]["text"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert answer["usage"]["completion_tokens"] == tokens
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 4
    events = post(scripted, "/v1/completions", body | {"stream": True}).text.split("\n\n")[:-2]
    choices = [json.loads(e.removeprefix("data: "))["choices"][0] for e in events]
    assert "".join(c["text"] for c in choices) == text
    assert choices[-1]["finish_reason"] == "stop"


def test_prompts_and_choices(client: openai.OpenAI) -> None:
    """Choice i of a prompt draws from noise stream i: here, it begins i tokens later."""
    answer = client.completions.create(model="scripted", prompt=["a", "bc"], n=3, seed=4, max_tokens=6)
    assert [c.index for c in answer.choices] == list(range(6))
    assert [c.text for c in answer.choices] == [text_of(6, 4 + i) for i in (0, 1, 2)] * 2
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 36)
    chunks = client.completions.create(
        model="scripted", prompt=["a", "bc"], n=3, seed=4, max_tokens=6, stream=True
    )
    texts = [""] * 6
    for chunk in chunks:
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [c.text for c in answer.choices]


def test_token_ids_as_prompt(scripted: ServerProcess) -> None:
    for prompt, count in (([0, 9, 10], 3), ([[0, 9], [11]], 3)):
        answer = post(scripted, "/v1/completions", {"prompt": prompt, "max_tokens": 2}).json()
        assert answer["usage"]["prompt_tokens"] == count


def test_a_missing_seed_is_drawn(scripted: ServerProcess) -> None:
    bodies = [{"prompt": ["a"] * 40, "max_tokens": 3}] * 2
    texts = [c["text"] for b in bodies for c in post(scripted, "/v1/completions", b).json()["choices"]]
    assert len(set(texts)) > 20


def test_spec_details_and_draft_depths(scripted: ServerProcess, client: openai.OpenAI) -> None:
    body = {
        "prompt": PROMPT, "max_tokens": 60, "temperature": 0, "return_spec_tokens_details": True,
        "return_draft_depths": True, "stop": "€",
    }  # fmt: skip
    answer = post(scripted, "/v1/completions", body | {"stop": None}).json()
    assert answer["usage"]["spec_details"] == {
        "verify_steps": 20, "accept_length": 3.0, "proposed": [20, 20], "accepted": [20, 20],
        "histogram": [0, 0, 20],
        "lossy": False, "simulated": False,
    }  # fmt: skip
    pieces = answer["choices"][0]["draft_depths"]
    assert "".join(text for text, _ in pieces) == answer["choices"][0]["text"]
    assert [depth for _, depth in pieces] == [1, 2, 0] * 20
    streamed = client.completions.create(
        model="scripted", prompt=PROMPT, max_tokens=60, temperature=0, stream=True,
        extra_body={"return_draft_depths": True},
    )  # fmt: skip
    assert [piece for chunk in streamed for piece in chunk.choices[0].draft_depths] == pieces
    stopped = post(scripted, "/v1/completions", body | {"max_tokens": 200}).json()
    assert stopped["choices"][0]["text"] == TEXT[: TEXT.index("€")]
    assert len(stopped["choices"][0]["draft_depths"]) == stopped["usage"]["completion_tokens"]
    assert stopped["usage"]["spec_details"]["accept_length"] == 3.0


def test_draft_steps(scripted: ServerProcess, fake: ServerProcess) -> None:
    """By the engine's clock; what is committed does not depend on being asked for them."""
    for server in (scripted, fake):
        body = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0, "return_draft_depths": True}
        plain = post(server, "/v1/completions", body).json()["choices"][0]
        assert "draft_steps" not in plain
        told = post(server, "/v1/completions", body | {"return_draft_steps": True}).json()
        (choice,), steps = told["choices"], told["choices"][0]["draft_steps"]
        assert choice["text"] == plain["text"]
        assert sum(step["tokens"] for step in steps) == told["usage"]["completion_tokens"] == 40
        times = [step["seconds"] for step in steps]
        assert times == sorted(times)
        assert times[0] > 0
        depths = iter(depth for _, depth in choice["draft_depths"])
        for step in steps:
            assert step["accepted"] == list(range(len(step["accepted"])))  # a chain
            assert len(step["accepted"]) <= len(step["drafts"])
            of_step = [next(depths) for _ in range(step["tokens"])]
            assert [d for d in of_step if d] == [i + 1 for i in step["accepted"]][: step["tokens"]]
    assert any(len(step["accepted"]) < len(step["drafts"]) for step in steps)


def test_sixteen_clients_at_once(scripted: ServerProcess) -> None:
    async def one(client: openai.AsyncOpenAI, i: int) -> str:
        stream = await client.completions.create(
            model="scripted", prompt=PROMPT, seed=i, max_tokens=100 + i, stream=True
        )
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(base_url=scripted.url + "/v1", api_key="none") as client:
            return await asyncio.gather(*(one(client, i) for i in range(16)))

    assert asyncio.run(all_of_them()) == [text_of(100 + i, i) for i in range(16)]


def test_figures(scripted: ServerProcess) -> None:
    assert httpx.get(scripted.url + "/health").json() == {"status": "ok"}
    (model,) = httpx.get(scripted.url + "/v1/models").json()["data"]
    assert (model["id"], model["object"], model["max_model_len"]) == ("scripted", "model", 1024)
    assert set(httpx.get(scripted.url + "/version").json()) == {"version"}
    for path in ("/server_info", "/get_server_info"):
        info = httpx.get(scripted.url + path).json()
        assert info["max_queued_requests"] == 512
        assert info["internal_states"][0]["avg_spec_accept_length"] > 1


def test_metrics_count(scripted: ServerProcess) -> None:
    before = scripted.metrics()
    post(scripted, "/v1/completions", {"prompt": PROMPT, "max_tokens": 30})
    after = scripted.metrics()
    grown = {name: after[name] - before.get(name, 0) for name in after}
    expected = {
        "nextn:prompt_tokens_total": 9, "nextn:cached_tokens_total": 4, "nextn:generation_tokens_total": 30,
        "nextn:num_requests_total": 1, "nextn:num_aborted_requests_total": 0,
        "nextn:spec_verify_steps_total": 10, 'nextn:spec_accepted_tokens_total{position="2"}': 10,
        "vllm:spec_decode_num_drafts_total": 10, "vllm:spec_decode_num_accepted_tokens_total": 20,
        "nextn:time_to_first_token_seconds_count": 1, "nextn:inter_token_latency_seconds_count": 27,
        "nextn:e2e_request_latency_seconds_count": 1,
    }  # fmt: skip
    assert {name: grown[name] for name in expected} == expected
    assert after["nextn:num_running_reqs"] == after["nextn:num_used_tokens"] == 0


def test_request_id(scripted: ServerProcess) -> None:
    given = httpx.get(scripted.url + "/health", headers={"X-Request-ID": "abc"})
    assert given.headers["x-request-id"] == "abc"
    assert post(scripted, "/v1/completions", {}, headers={"x-request-id": "e"}).headers["x-request-id"] == "e"
    made = {httpx.get(scripted.url + "/health").headers["x-request-id"] for _ in range(2)}
    assert len(made) == 2
