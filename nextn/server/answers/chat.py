"""Makes a chat's answer, whole or in chunks: content, reasoning, tool calls."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from nextn.server.answers.choice import Choice, Delta
from nextn.server.answers.logprobs import Entry, chat_logprobs
from nextn.server.parsers.answer import AnswerFormat, AnswerParser
from nextn.server.parsers.parts import Part
from nextn.server.protocol.responses import ChatChoice, ChatDelta, FunctionCall, Message, ToolCall
from nextn.server.protocol.responses import Delta as ChatText
from nextn.tokenizer.tokenizer import Tokenizer


def call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"


def chat_choice(choice: Choice, tokenizer: Tokenizer, answer_format: AnswerFormat) -> ChatChoice:
    """The complete answer of a choice that has ended."""
    parser = AnswerParser(answer_format)
    parts = parser.push("".join(choice.text)) + parser.finish()
    content = answer_format.echo + "".join(part.text for part in parts if part.kind == "content")
    message = Message("assistant", content)
    if answer_format.reasoning is not None:
        message.reasoning_content = "".join(p.text for p in parts if p.kind == "reasoning") or None
    calls = whole_calls(parts)
    if calls:
        message.tool_calls = calls
        message.content = content or None
    logprobs = None if choice.logprobs is None else chat_logprobs(choice.entries, tokenizer)
    reason = finish_reason(choice, bool(calls))
    return ChatChoice(choice.index, message, reason, logprobs, matched_stop(choice))


def whole_calls(parts: Sequence[Part]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    for part in parts:
        if part.kind == "call":
            calls.append(ToolCall(FunctionCall("", part.text), call_id(), "function"))
        elif part.kind == "arguments":
            calls[part.call].function.arguments += part.text
    return calls


def finish_reason(choice: Choice, calls: bool) -> str | None:
    return "tool_calls" if calls and choice.finish_reason == "stop" else choice.finish_reason


def matched_stop(choice: Choice) -> int | str | UnsetType:
    return UNSET if choice.matched is None else choice.matched


def reasoning_tokens(choice: Choice, answer_format: AnswerFormat) -> int:
    """Number of an answer's tokens that are reasoning, including the markers around the reasoning."""
    parser = answer_format.reasoning_parser()
    if parser is None:
        return 0
    data = [choice.stream.token_bytes[token] for token in choice.tokens]
    text = b"".join(data).decode(errors="surrogateescape")
    parts = parser.push(text) + parser.finish()
    content = "".join(part.text for part in parts if part.kind == "content")
    end, count = len(text.removesuffix(content).encode(errors="surrogateescape")), 0
    for each in data:
        if end <= 0:
            break
        end -= len(each)
        count += 1
    return count


@dataclass
class ChunkState:
    """State of a choice between its chunks. calls: whether a tool call has been sent."""

    parser: AnswerParser
    calls: bool = False
    entries: list[Entry] = field(default_factory=list)  # those not sent yet: the parser holds back their text


class ChatWording:
    """Makes a chat's chunks for each delta. A choice's first chunk has the role; each later chunk has one
    part of the text. Log-probabilities are sent with the first chunk made after their text arrived."""

    def __init__(self, tokenizer: Tokenizer, answer_format: AnswerFormat) -> None:
        self.tokenizer, self.answer_format = tokenizer, answer_format
        self.begun: dict[int, ChunkState] = {}

    def __call__(self, delta: Delta) -> list[ChatDelta]:
        choice, chunks = delta.choice, list[ChatDelta]()
        state = self.begun.get(choice.index)
        if state is None:
            state = self.begun[choice.index] = ChunkState(AnswerParser(self.answer_format))
            chunks.append(self._chunk(state, choice, ChatText(role="assistant", content="")))
            if self.answer_format.echo:
                chunks.append(self._chunk(state, choice, ChatText(content=self.answer_format.echo)))
        parts = state.parser.push(delta.text)
        if choice.finish_reason is not None:
            parts += state.parser.finish()
        state.entries += delta.entries
        for part in parts:
            state.calls |= part.kind == "call"
            chunks.append(self._chunk(state, choice, wording(part)))
        if choice.finish_reason is not None:
            if not parts:
                chunks.append(self._chunk(state, choice, ChatText()))
            chunks[-1].finish_reason = finish_reason(choice, state.calls)
            chunks[-1].matched_stop = matched_stop(choice)
        return chunks

    def _chunk(self, state: ChunkState, choice: Choice, text: ChatText) -> ChatDelta:
        logprobs = None if choice.logprobs is None else chat_logprobs(state.entries, self.tokenizer)
        state.entries = []
        return ChatDelta(choice.index, text, None, logprobs)


def wording(part: Part) -> ChatText:
    if part.kind == "content":
        return ChatText(content=part.text)
    if part.kind == "reasoning":
        return ChatText(reasoning_content=part.text)
    if part.kind == "call":
        return ChatText(tool_calls=[ToolCall(FunctionCall("", part.text), call_id(), "function", part.call)])
    return ChatText(tool_calls=[ToolCall(FunctionCall(part.text), index=part.call)])
