"""Chats' answers: reasoning and calls, whole and streamed, in any runs of tokens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.engine_socket import EngineSocket
from support.small_tokenizer import write_small_tokenizer

from nextn.request import Output, SamplingParams, TokenLogprob
from nextn.server.answers.choice import Prompt
from nextn.server.answers.generation import Generation
from nextn.server.answers.openai import Reply
from nextn.server.parsers.answer import CONTENT, AnswerFormat
from nextn.server.parsers.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready, StepOutputs
from nextn.server.protocol.openai import ChatRequest
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer

ARGUMENTS = '{"where": "é/src"}'
CALL = f"{CALL_BEGIN}look{SEPARATOR}{ARGUMENTS}{CALL_END}"
TEXT = f"<think>Hm, ok.</think>I look.{CALLS_BEGIN}{CALL}{CALL}{CALLS_END}"
READING = AnswerFormat("deepseekv31", reasoning=False)


def played(
    tokenizer: Tokenizer,
    text: str,
    cuts: list[int],
    answer_format: AnswerFormat,
    reason: str = "stop",
    **fields: Any,
) -> list[dict[str, Any]]:
    """The answer, or the chunks, when the text comes in runs of so many tokens."""
    engine = EngineClient()
    engine.attach(Ready(258, 1024, 2, {}, EngineStats()), EngineSocket())  # type: ignore[arg-type]
    request = ChatRequest(messages=[], **fields)
    params = SamplingParams(logprobs=request.tops)
    generation = Generation(engine, tokenizer, [Prompt([0], params, shown=answer_format.markers)], 1, 0.0)
    reply = Reply(request, generation, "m", answer_format)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    outputs, at = [], 0
    for run in [*cuts, len(tokens)]:
        part, at = tokens[at : at + run], at + run
        out = Output(
            generation.choices[0].request.rid, part, [0] * len(part), reason if at >= len(tokens) else None
        )
        out.logprobs = [TokenLogprob(-1.0, [])] * len(part) if request.logprobs else None
        outputs.append(out)
        if out.finish_reason is not None:
            break

    async def play() -> list[bytes]:
        async def answer() -> list[bytes]:
            return [chunk async for chunk in reply.chunks()] if request.stream else [await reply.whole()]

        working = asyncio.ensure_future(answer())
        await asyncio.sleep(0)
        for out in outputs:
            engine.receive(StepOutputs([out], EngineStats(), 0.1))
            await asyncio.sleep(0)
        return await working

    return [json.loads(chunk) for chunk in asyncio.run(play())]


def put_together(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of a stream."""
    choices = [chunk["choices"][0] for chunk in chunks]
    assert [c["finish_reason"] for c in choices[:-1]] == [None] * (len(choices) - 1)
    assert choices[0]["delta"] == {"role": "assistant", "content": ""}
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for delta in (c["delta"] for c in choices):
        for name in ("content", "reasoning_content"):
            message[name] += delta.get(name, "")
        for call in delta.get("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"])
                assert (call["type"], call["function"]["arguments"]) == ("function", "")
                message["tool_calls"].append(
                    {"name": call["function"]["name"], "arguments": "", "id": call["id"]}
                )
            else:
                message["tool_calls"][call["index"]]["arguments"] += call["function"]["arguments"]
    tokens = [t["token"] for c in choices if c["logprobs"] for t in c["logprobs"]["content"]]
    return {"message": message, "finish_reason": choices[-1]["finish_reason"], "tokens": tokens}


def test_a_whole_answer(tokenizer: Tokenizer) -> None:
    (answer,) = played(tokenizer, TEXT, [], READING)
    (choice,) = answer["choices"]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("I look.", "Hm, ok.")
    assert choice["finish_reason"] == "tool_calls"
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"arguments": ARGUMENTS, "name": "look"}] * 2
    ids = [call["id"] for call in message["tool_calls"]]
    assert len(set(ids)) == 2
    assert all(i.startswith("call_") for i in ids)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(cuts=st.lists(st.integers(1, 40), max_size=30), logprobs=st.booleans(), pieces=st.booleans())
def test_a_stream_tells_the_same(tokenizer: Tokenizer, cuts: list[int], logprobs: bool, pieces: bool) -> None:
    answer_format = AnswerFormat("deepseekv31", reasoning=False, stream_reasoning=pieces)
    chunks = played(tokenizer, TEXT, cuts, answer_format, stream=True, logprobs=logprobs)
    got = put_together(chunks)
    assert got["message"]["content"] == "I look."
    assert got["message"]["reasoning_content"] == "Hm, ok."
    calls = [(call["name"], call["arguments"]) for call in got["message"]["tool_calls"]]
    assert calls == [("look", ARGUMENTS)] * 2
    assert got["finish_reason"] == "tool_calls"
    assert len(got["tokens"]) == logprobs * len(TEXT.encode())  # every token's, once
    thoughts = [c for c in chunks if "reasoning_content" in c["choices"][0]["delta"]]
    assert pieces or len(thoughts) == 1


@pytest.mark.parametrize(
    ("text", "reason", "content", "calls", "ended"),
    [
        ("no call", "stop", "no call", None, "stop"),
        (CALL, "stop", None, [ARGUMENTS], "tool_calls"),
        (CALL[: -len(CALL_END)], "stop", None, [ARGUMENTS], "tool_calls"),  # parallel_tool_calls: false
        (CALL[: -len(CALL_END) - 2], "length", None, [ARGUMENTS[:-2]], "length"),
        (f"{CALL_BEGIN}lo", "length", f"{CALL_BEGIN}lo", None, "length"),
    ],
)  # fmt: skip
def test_ends(
    tokenizer: Tokenizer, text: str, reason: str, content: str | None, calls: list[str] | None, ended: str
) -> None:
    answer_format = AnswerFormat("deepseekv31")
    (answer,) = played(tokenizer, text, [], answer_format, reason)
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (content, ended)
    assert "reasoning_content" not in choice["message"]
    made = choice["message"].get("tool_calls")
    assert (made and [call["function"]["arguments"] for call in made]) == calls
    got = put_together(played(tokenizer, text, [3, 1, 4], answer_format, reason, stream=True))
    assert (got["message"]["content"] or None, got["finish_reason"]) == (content, ended)
    assert [call["arguments"] for call in got["message"]["tool_calls"]] == (calls or [])


def test_a_text_that_is_not_read(tokenizer: Tokenizer) -> None:
    (answer,) = played(tokenizer, TEXT, [], CONTENT)
    message = answer["choices"][0]["message"]
    assert message == {"role": "assistant", "content": TEXT, "refusal": None}


def test_reasoning_tokens_are_counted(tokenizer: Tokenizer) -> None:
    """One token a byte here; the marks are of the reasoning."""
    thought = len("<think>Hm, ok.</think>")
    for text, answer_format, count in (
        (TEXT, READING, thought), ("Hm, é", AnswerFormat(reasoning=True), 6), ("so", READING, 0),
        (TEXT, CONTENT, None),
    ):  # fmt: skip
        (answer,) = played(tokenizer, text, [], answer_format)
        *_, last = played(
            tokenizer, text, [3], answer_format, stream=True, stream_options={"include_usage": True}
        )
        for body in (answer, last):
            details = None if count is None else {"reasoning_tokens": count}
            assert body["usage"].get("completion_tokens_details") == details


def test_reasoning_alone(tokenizer: Tokenizer) -> None:
    (answer,) = played(tokenizer, "never done", [], AnswerFormat(reasoning=True), "length")
    message = answer["choices"][0]["message"]
    assert (message["content"], message["reasoning_content"]) == ("", "never done")


def test_special_tokens_of_the_format_come_through(tmp_path: Path) -> None:
    """As special tokens they would be skipped."""
    folder = write_small_tokenizer(tmp_path / "special")
    data = json.loads((folder / "tokenizer.json").read_text())
    for i, name in enumerate([CALL_BEGIN, CALL_END, SEPARATOR]):
        added = {"id": 258 + i, "content": name, "special": True, "single_word": False, "lstrip": False}
        data["added_tokens"].append({**added, "rstrip": False, "normalized": False})
    (folder / "tokenizer.json").write_text(json.dumps(data))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.encode(CALL, add_special_tokens=False)[0] == 258
    (read,) = played(tokenizer, CALL, [], AnswerFormat("deepseekv31"), logprobs=True)
    assert read["choices"][0]["finish_reason"] == "tool_calls"
    assert read["choices"][0]["logprobs"]["content"][0]["token"] == CALL_BEGIN
    (skipped,) = played(tokenizer, CALL, [], CONTENT)
    assert skipped["choices"][0]["message"]["content"] == f"look{ARGUMENTS}"
