"""The answers of /generate: the whole text so far, and what goes with it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_socket import ScriptedSocket

from nextn.server.answers.native import NativeReply
from nextn.server.answers.service import Service
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready
from nextn.server.protocol.body import parse
from nextn.server.protocol.native import GenerateRequest
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "héllo €uro, stop here"


def answer(
    tokenizer: Tokenizer,
    tokens: Sequence[int],
    cuts: Sequence[int] = (),
    matched: int | None = None,
    **fields: Any,
) -> Any:
    """The whole answer, or the chunks when the request streams."""

    async def play() -> Any:
        client = EngineClient()
        socket = ScriptedSocket(client, tokens, cuts, matched)
        client.attach(Ready(258, 1024, 2, {}, EngineStats()), socket)  # type: ignore[arg-type]
        service = Service(ServerConfig(), client, tokenizer)
        request = parse(json.dumps({"input_ids": [0, 5, 6]} | fields).encode(), GenerateRequest)
        generation, asked = await service.generate(request)
        reply = NativeReply(request, asked, generation)
        if request.stream:
            return [json.loads(chunk) async for chunk in reply.chunks()]
        found = json.loads(await reply.whole())
        assert client.active == 0
        return found

    return asyncio.run(play())


def test_meta_info(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("abcdefghij", add_special_tokens=False)
    got = answer(tokenizer, tokens, [1, 3, 3, 3], rid="mine", sampling_params={"max_new_tokens": 10})
    assert (got["text"], got["output_ids"]) == ("abcdefghij", tokens)
    meta = got["meta_info"]
    assert meta.pop("e2e_latency") > 0
    assert meta == {
        "id": "mine", "finish_reason": {"type": "length", "length": 10},
        "prompt_tokens": 3, "completion_tokens": 10, "cached_tokens": 2,
        "spec_accept_rate": 0.6, "spec_accept_length": 2.5, "spec_num_correct_drafts": 6,
        "spec_num_proposed_drafts": 10, "spec_verify_ct": 4, "spec_correct_drafts_histogram": [1, 0, 3],
        "spec_lossy": False, "spec_simulated": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("fields", "matched", "reason", "text"),
    [
        ({}, 7, {"type": "stop", "matched": 7}, TEXT),
        ({"sampling_params": {"stop": ["stop", "z"]}}, None, {"type": "stop", "matched": "stop"}, TEXT[:12]),
        ({"sampling_params": {"max_new_tokens": 99}}, None, {"type": "length", "length": 99}, TEXT),
    ],
)  # fmt: skip
def test_finish_reasons(
    tokenizer: Tokenizer, fields: dict[str, Any], matched: int | None, reason: object, text: str
) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    got = answer(tokenizer, tokens, [4, 4, 4], matched, **fields)
    assert got["meta_info"]["finish_reason"] == reason
    assert got["text"] == text
    # The token that completed the stop string is the last one.
    used = len(TEXT[: TEXT.index("stop") + 4].encode()) if "stop" in str(fields) else len(tokens)
    assert got["output_ids"] == tokens[:used]
    assert got["meta_info"]["completion_tokens"] == used


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    cuts=st.lists(st.integers(1, 5), max_size=20), stop=st.sampled_from([[], ["stop"], ["€"], ["nowhere"]])
)
def test_chunks_hold_the_whole_text_so_far(tokenizer: Tokenizer, cuts: list[int], stop: list[str]) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    fields = {
        "sampling_params": {"stop": stop}, "return_logprob": True, "logprob_start_len": 0, "rid": "r",
        "top_logprobs_num": 2,
    }  # fmt: skip
    whole = answer(tokenizer, tokens, cuts, **fields)
    *parts, last = answer(tokenizer, tokens, cuts, stream=True, **fields)
    for got in (whole, last):
        del got["meta_info"]["e2e_latency"]
    assert last == whole
    for part in parts:
        n = len(part["output_ids"])
        assert whole["text"].startswith(part["text"])
        assert whole["output_ids"][:n] == part["output_ids"]
        assert part["meta_info"]["finish_reason"] is None
        assert part["meta_info"]["completion_tokens"] == len(part["meta_info"]["output_token_logprobs"]) == n
        assert part["meta_info"]["output_token_logprobs"] == whole["meta_info"]["output_token_logprobs"][:n]
        assert "spec_verify_ct" not in part["meta_info"]


@pytest.mark.parametrize("start", [-1, 0, 1, 3])
@pytest.mark.parametrize("texts", [False, True])
def test_logprobs(tokenizer: Tokenizer, start: int, texts: bool) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    prompt = [0, 5, 6]
    meta = answer(
        tokenizer, tokens, return_logprob=True, logprob_start_len=start, top_logprobs_num=2,
        return_text_in_logprobs=texts,
    )["meta_info"]  # fmt: skip

    def spelled(token: int) -> str | None:
        return tokenizer.token_names[token] if texts else None

    def entry(token: int) -> list[object]:
        return [-token / 100, token, spelled(token)]

    def top(token: int) -> list[object]:
        return [[-0.25, token + 1, spelled(token + 1)], entry(token)]

    assert meta["output_token_logprobs"] == [entry(token) for token in tokens]
    assert meta["output_top_logprobs"] == [top(token) for token in tokens]
    shown = prompt[start:] if start >= 0 else []
    assert meta["input_token_logprobs"] == [
        entry(token) if i else [None, token, spelled(token)] for i, token in enumerate(shown)
    ]
    assert meta["input_top_logprobs"] == [top(token) if i else None for i, token in enumerate(shown)]


def test_no_logprobs_where_none_were_asked_for(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    first, second = answer(
        tokenizer, tokens, input_ids=[[5], [6]], return_logprob=[True, False], top_logprobs_num=0
    )
    assert len(first["meta_info"]["output_token_logprobs"]) == 2
    assert not any("logprob" in name for name in second["meta_info"])
    assert "output_top_logprobs" not in first["meta_info"]


@pytest.mark.parametrize(
    ("fields", "ids"),
    [
        ({"input_ids": [[5], [6]], "rid": "r"}, ["r_0", "r_1"]),
        ({"input_ids": [[5], [6]], "rid": ["p", "q"]}, ["p", "q"]),
        ({"input_ids": [[5]], "rid": ["p"]}, ["p"]),
        ({"input_ids": [5, 6], "rid": "r", "sampling_params": {"n": 2}}, ["r_0", "r_1"]),
        ({"input_ids": [[5], [6]], "rid": "r", "sampling_params": {"n": 2}},
         ["r_0_0", "r_0_1", "r_1_0", "r_1_1"]),
    ],
)  # fmt: skip
def test_many(tokenizer: Tokenizer, fields: dict[str, Any], ids: list[str]) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    got = answer(tokenizer, tokens, **fields)
    assert [each["meta_info"]["id"] for each in got] == ids
    assert all(each["text"] == "ab" and "index" not in each for each in got)
    chunks = answer(tokenizer, tokens, [1, 1], stream=True, **fields)
    assert {chunk["index"]: chunk["meta_info"]["id"] for chunk in chunks} == dict(enumerate(ids))


def test_ids_are_made_up(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    ids = {answer(tokenizer, tokens)["meta_info"]["id"] for _ in range(2)}
    assert len(ids) == 2
