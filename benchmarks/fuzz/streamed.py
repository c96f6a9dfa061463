"""The property that a streamed answer, read from its events, equals the answer that is not streamed. The same
tokens, cut into steps in two ways, go through the server's code from the engine's outputs to the socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from source import TOKENIZER, Source

from nextn.request import Output, SamplingParams, TokenLogprob
from nextn.server.answers.choice import Prompt
from nextn.server.answers.generation import Generation
from nextn.server.answers.openai import Reply
from nextn.server.http.sse import EventStream
from nextn.server.parsers.answer import CONTENT, AnswerFormat
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Add, Ready, StepOutputs, decode_to_engine
from nextn.server.protocol.openai import ChatRequest, CompletionRequest
from nextn.stats import EngineStats, SpecStats

TEXTS = ("text", "content", "reasoning_content")


@dataclass
class Played:
    """Replaces the engine at its end of the socket: every request gets these tokens, in these steps."""

    steps: Sequence[list[int]]
    logprobs: bool
    reason: str
    client: EngineClient = field(default_factory=EngineClient)

    def __post_init__(self) -> None:
        self.client.attach(Ready(4200, 4096, 2, {}, EngineStats()), self)  # type: ignore[arg-type]

    def send(self, data: bytes) -> None:
        message = decode_to_engine(data)
        if isinstance(message, Add):
            for i, tokens in enumerate(self.steps):
                out = Output(message.requests[0].rid, tokens, [token % 3 for token in tokens])
                if self.logprobs:
                    out.logprobs = [TokenLogprob(-token / 64, [(token, -token / 64)]) for token in tokens]
                if i == len(self.steps) - 1:
                    out.finish_reason, out.spec = self.reason, SpecStats()
                self.client.receive(StepOutputs([out], EngineStats(), 0.1))


def streamed_is_whole(data: bytes) -> None:
    source = Source(data)
    chat, logprobs, reason = source.below(2), source.below(2) == 1, source.pick(["length", "stop"])
    answer_format = source.answer_format() if chat else CONTENT
    stop, tokens = source.stop(), source.tokens()
    cuts = [[*source.cut(tokens), []], [*source.cut(tokens), []]]
    request: ChatRequest | CompletionRequest
    if chat:
        request = ChatRequest(messages=[], logprobs=logprobs)
    else:
        request = CompletionRequest(prompt="x", logprobs=0 if logprobs else None, return_draft_depths=True)
    replies = [reply(request, answer_format, stop, Played(steps, logprobs, reason)) for steps in cuts]
    whole, events = asyncio.run(answers(*replies))
    assert put_together(events) == plain(whole["choices"][0]), (tokens, cuts, stop, answer_format)


def reply(
    request: ChatRequest | CompletionRequest, answer_format: AnswerFormat, stop: list[str], engine: Played
) -> Reply:
    params = SamplingParams(max_tokens=4096, logprobs=request.tops)
    prompt = Prompt([5], params, stop, shown=answer_format.markers)
    depths = isinstance(request, CompletionRequest)
    return Reply(request, Generation(engine.client, TOKENIZER, [prompt], 1, 0.0, depths), "m", answer_format)


async def answers(first: Reply, second: Reply) -> tuple[Any, list[Any]]:
    """Returns the first reply's whole answer, and the second reply's events as a client reads them."""
    sent = bytearray()

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.extend(message.get("body", b""))

    whole = json.loads(await first.whole())
    stream = await EventStream(second.chunks()).start()
    await stream({}, receive, send)
    events = bytes(sent).split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""], events
    assert all(event.startswith(b"data: ") and not {*b"\r\n"} & {*event} for event in events[:-1]), events
    return whole, [json.loads(event[6:])["choices"][0] for event in events[:-2]]


def put_together(chunks: Sequence[Any]) -> dict[str, Any]:
    """The contents of the chunks of one choice together, in the form of `plain`."""
    calls: list[list[str]] = []
    for chunk in chunks:
        for call in chunk.get("delta", {}).get("tool_calls", []):
            if "name" in call["function"]:
                assert call["index"] == len(calls)
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    assert all(chunk["finish_reason"] is None for chunk in chunks[:-1])
    texts = [{**chunk, **chunk.get("delta", {})} for chunk in chunks]
    logprobs = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"] is not None]
    return {
        **{
            name: "".join(text.get(name) or "" for text in texts)
            for name in ("text", "content", "reasoning_content")
        },
        "calls": calls,
        "finish_reason": chunks[-1]["finish_reason"],
        "matched_stop": chunks[-1].get("matched_stop"),
        "logprobs": [each for part in logprobs for each in logprobs_of(part)],
        "draft_depths": [each for chunk in chunks for each in depths_of(chunk)],
    }


def plain(choice: Any) -> dict[str, Any]:
    message = choice.get("message", {})
    said = {**choice, **message}
    return {
        **{name: said.get(name) or "" for name in TEXTS},
        "calls": [[c["function"]["name"], c["function"]["arguments"]] for c in message.get("tool_calls", [])],
        "finish_reason": choice["finish_reason"],
        "matched_stop": choice.get("matched_stop"),
        "logprobs": [] if choice["logprobs"] is None else logprobs_of(choice["logprobs"]),
        "draft_depths": depths_of(choice),
    }


def depths_of(choice: Any) -> list[Any]:
    """Draft depths by character, because a stream has a separate entry for text that it held back until the
    end."""
    return [(character, depth) for text, depth in choice.get("draft_depths", []) for character in text]


def logprobs_of(logprobs: Any) -> list[Any]:
    if "content" in logprobs:
        return [(each["token"], each["logprob"], each["bytes"]) for each in logprobs["content"]]
    return list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["text_offset"], strict=True))
