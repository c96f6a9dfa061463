"""What prefill and decode servers send to their engines, and what gateways get from both."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.played_replicas import Played
from support.scripted_socket import app_of, logprob_of
from support.small_tokenizer import write_small_tokenizer

from nextn.disaggregation.remote import Remote
from nextn.request import Output
from nextn.server.launch import make_engines
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.messages import Add, NewRequest, PromptScores, StepOutputs, requests_of
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

ONE = {"bootstrap_room": 7, "bootstrap_host": "p", "bootstrap_port": 9}
ANSWER = [70, 71]


def answering(message: Any) -> StepOutputs | None:
    """Prompts are scored where that is asked for, and answered with as many tokens as are wanted."""
    if not isinstance(message, Add):
        return None
    outputs, scores = [], []
    for request in requests_of(message):
        params = request.params
        tokens = ANSWER[: params.max_tokens]
        out = Output(request.rid, tokens, [0] * len(tokens), "length", cached_tokens=1)
        if params.logprobs is not None:
            out.logprobs = [logprob_of(token) for token in tokens]
        if params.prompt_logprobs is not None:
            scores.append(PromptScores.pack([request.rid], [None, *map(logprob_of, request.tokens[1:])]))
        outputs.append(out)
    return StepOutputs(outputs, EngineStats(), 0.1, scores)


class Sent:
    """What one server made of a body."""

    def __init__(self, tokenizer: Tokenizer, mode: str, path: str, body: dict[str, Any]) -> None:
        config = ServerConfig(disaggregation_mode=mode, tool_call_parser="deepseekv31")
        engines = make_engines(config)
        played = Played(engines.ranks[0])
        played.on = answering

        async def play() -> httpx.Response:
            app = app_of(config, Metrics(engines), tokenizer)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as http:
                return await http.post(path, json=body)

        self.answer = asyncio.run(play())
        self.requests = played.requests
        self.remotes = [request.remote for request in played.requests]

    @property
    def json(self) -> Any:
        return self.answer.json()

    @property
    def events(self) -> list[Any]:
        lines = self.answer.text.split("\n\n")[:-2]
        return [json.loads(line.removeprefix("data: ")) for line in lines]


def both(tokenizer: Tokenizer, path: str, **body: Any) -> tuple[Sent, Sent]:
    return Sent(tokenizer, "prefill", path, body), Sent(tokenizer, "decode", path, body)


BODIES: Sequence[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "abc", "max_tokens": 2, "regex": "[a-z]+"}),
    ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 2, "regex": "[a-z]+"}}),
    (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "abc"}],
            "max_tokens": 2,
            "response_format": {"type": "json_object"},
        },
    ),
]


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_one_prompt(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    prefill, decode = both(tokenizer, path, **body, **ONE)
    assert (prefill.answer.status_code, decode.answer.status_code) == (200, 200), prefill.json
    assert (prefill.remotes, decode.remotes) == ([Remote(7)], [Remote(7, "p", 9)])
    (there,), (here,) = prefill.requests, decode.requests
    assert there.tokens == here.tokens
    assert (there.params.max_tokens, there.params.constraint) == (0, None)
    plain = Sent(tokenizer, "null", path, body).requests[0]
    assert (here.params.max_tokens, here.params.constraint) == (2, plain.params.constraint)
    assert here.params.constraint is not None


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_requests_that_no_gateway_shared_out(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    for sent in both(tokenizer, path, **body):
        assert (sent.remotes, sent.requests[0].params.max_tokens) == ([None], 2)


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_streams(tokenizer: Tokenizer, path: str, body: dict[str, Any]) -> None:
    for sent in both(tokenizer, path, **body, **ONE, stream=True):
        assert sent.answer.headers["content-type"].startswith("text/event-stream")
        assert len(sent.events) >= 1


def test_choices_of_one_prompt_have_one_room(tokenizer: Tokenizer) -> None:
    body = {"prompt": ["abc", "abc"], "n": 3, "stop": "x", "max_tokens": 2}
    prefill, decode = both(tokenizer, "/v1/completions", **body, **ONE)
    assert prefill.remotes == [Remote(7), Remote(8)]
    assert decode.remotes == [Remote(7, "p", 9)] * 3 + [Remote(8, "p", 9)] * 3
    groups = [request.group for request in decode.requests]
    assert groups == [groups[0]] * 3 + [groups[3]] * 3
    assert groups[0] != groups[3]
    prefill, decode = both(tokenizer, "/generate", text="abc", sampling_params={"n": 2}, **ONE)
    assert (prefill.remotes, decode.remotes) == ([Remote(7)], [Remote(7, "p", 9)] * 2)


def test_a_room_for_each_choice(tokenizer: Tokenizer) -> None:
    """So sglang-router and smg send chats."""
    body = {"messages": [{"role": "user", "content": "abc"}], "n": 2}
    lists = {"bootstrap_room": [7, 8], "bootstrap_host": ["p", "p"], "bootstrap_port": [9, 9]}
    prefill, decode = both(tokenizer, "/v1/chat/completions", **body, **lists)
    assert (prefill.remotes, decode.remotes) == ([Remote(7)], [Remote(7, "p", 9)] * 2)
    sent = Sent(tokenizer, "decode", "/v1/chat/completions", body | lists | {"bootstrap_room": [7, 8, 9]})
    assert (sent.answer.status_code, sent.json["error"]["param"]) == (400, "bootstrap_room")


def test_what_vllms_gateway_puts_into_generate(tokenizer: Tokenizer) -> None:
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 5, "min_new_tokens": 2}}
    limits = {"max_tokens": 1, "min_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}
    sent = Sent(tokenizer, "prefill", "/generate", body | limits)
    assert (sent.answer.status_code, sent.requests[0].params.max_tokens) == (200, 0)
    for mode, more in (("prefill", {"max_tokens": 1}), ("decode", {**limits, "kv_transfer_params": {}})):
        refused = Sent(tokenizer, mode, "/generate", body | more)
        assert (refused.answer.status_code, refused.json["error"]["param"]) == (400, "max_tokens")


def test_no_version(tokenizer: Tokenizer) -> None:
    """By it smg would take the server for vLLM, and send neither dialect."""

    async def status(mode: str) -> int:
        config = ServerConfig(disaggregation_mode=mode)
        app = app_of(config, Metrics(make_engines(config)), tokenizer)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://s") as http:
            return (await http.get("/version")).status_code

    assert [asyncio.run(status(mode)) for mode in ("null", "prefill", "decode")] == [200, 404, 404]


def test_usage_is_that_of_one_server(tokenizer: Tokenizer) -> None:
    body = {"prompt": "abc", "max_tokens": 2}
    alone = Sent(tokenizer, "null", "/v1/completions", body)
    _, decode = both(tokenizer, "/v1/completions", **body, **ONE)
    assert (decode.json["usage"], decode.json["choices"]) == (alone.json["usage"], alone.json["choices"])


def merged(prefill: Any, decode: Any) -> Any:
    """As sglang-router and its mini load balancer do it."""
    if isinstance(decode, dict) and isinstance(prefill, dict):
        name = "input_token_logprobs"
        decode["meta_info"][name] = prefill["meta_info"][name] + decode["meta_info"][name]
    return decode


def without_times(answer: Any) -> Any:
    if isinstance(answer, list):
        return [without_times(each) for each in answer]
    dropped = ("id", "e2e_latency")
    return answer | {"meta_info": {k: v for k, v in answer["meta_info"].items() if k not in dropped}}


@pytest.mark.parametrize("start", [-1, 0, 2])
@pytest.mark.parametrize("tops", [0, 2])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("text", ["abcd", ["abcd"], ["abcd", "efg"]])
def test_log_probabilities_are_those_of_one_server(
    tokenizer: Tokenizer, text: object, n: int, tops: int, start: int
) -> None:
    body = {
        "text": text, "sampling_params": {"max_new_tokens": 2, "n": n}, "return_logprob": True,
        "top_logprobs_num": tops, "logprob_start_len": start,
    }  # fmt: skip
    alone = Sent(tokenizer, "null", "/generate", body)
    prefill, decode = both(tokenizer, "/generate", **body, **ONE)
    assert without_times(merged(prefill.json, decode.json)) == without_times(alone.json)
    for sent in (prefill, decode):
        assert [remote is not None for remote in sent.remotes] == [start < 0] * len(sent.remotes)
    assert all(request.params.prompt_logprobs is None for request in prefill.requests)


def test_log_probabilities_of_streams(tokenizer: Tokenizer) -> None:
    """The mini load balancer puts those of the prefill server's first event before the decode server's."""
    body = {
        "text": "abcd", "sampling_params": {"max_new_tokens": 2}, "return_logprob": True,
        "logprob_start_len": 0, "stream": True,
    }  # fmt: skip
    alone = Sent(tokenizer, "null", "/generate", body)
    prefill, decode = both(tokenizer, "/generate", **body, **ONE)
    found = [merged(prefill.events[0], event) for event in decode.events]
    assert [without_times(each) for each in found] == [without_times(each) for each in alone.events]


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_vllms_gateways(tokenizer: Tokenizer, path: str, body: dict[str, Any], stream: bool) -> None:
    asked = {"kv_transfer_params": {"do_remote_decode": True, "remote_host": None}}
    prefill = Sent(tokenizer, "prefill", path, body | asked | {"stream": stream})
    answer = prefill.events[-1] if stream else prefill.json
    if path.startswith("/v1/chat") and stream:
        answer = next(event for event in prefill.events if "kv_transfer_params" in event)
    params = answer["kv_transfer_params"]
    (remote,) = prefill.remotes
    assert remote is not None
    assert (params["remote_host"], params["remote_port"]) == ("127.0.0.1", 8998)
    decode = Sent(tokenizer, "decode", path, body | {"kv_transfer_params": params})
    assert decode.remotes == [Remote(remote.room, "127.0.0.1", 8998)]
    assert "kv_transfer_params" not in decode.json


def test_a_server_of_its_own_refuses(tokenizer: Tokenizer) -> None:
    sent = Sent(tokenizer, "null", "/generate", {"text": "abc", **ONE})
    assert (sent.answer.status_code, sent.json["error"]["param"]) == (400, "bootstrap_room")
    assert sent.requests == list[NewRequest]()


def test_a_forced_tool_call(tmp_path: Path) -> None:
    template = tmp_path / "tools.jinja"
    template.write_text("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}")
    showing = Tokenizer.from_folder(write_small_tokenizer(tmp_path), template)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    body = {"messages": [{"role": "user", "content": "abc"}], "tools": [tool], "tool_choice": "required"}
    plain = Sent(showing, "null", "/v1/chat/completions", body)
    prefill, decode = both(showing, "/v1/chat/completions", **body, **ONE)
    assert prefill.requests[0].params.constraint is None
    assert decode.requests[0].params.constraint == plain.requests[0].params.constraint
    assert decode.requests[0].params.constraint is not None
