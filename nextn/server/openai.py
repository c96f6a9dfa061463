"""/v1/completions and /v1/chat/completions: a generation's deltas as OpenAI's answers and chunks."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec import UNSET, UnsetType

from nextn.request import SpecStats
from nextn.server.generation import Choice, Delta, Generation
from nextn.server.logprobs import chat_logprobs, completion_logprobs
from nextn.server.protocol import ChatRequest, CommonRequest
from nextn.server.responses import (
    Answer,
    ChatChoice,
    ChatDelta,
    CompletionChoice,
    Message,
    SglExt,
    Usage,
    encode,
    spec_tokens_details,
    usage,
)
from nextn.server.responses import Delta as ChatText
from nextn.tokenizer.tokenizer import Tokenizer

Chunk = CompletionChoice | ChatDelta


class Reply:
    """How one endpoint words its answers."""

    def __init__(self, request: CommonRequest, generation: Generation, model: str) -> None:
        self.request, self.generation, self.model = request, generation, model
        self.chat = isinstance(request, ChatRequest)
        self.id = f"{'chatcmpl' if self.chat else 'cmpl'}-{generation.id}"
        self.created = int(time.time())

    async def whole(self) -> bytes:
        """The answer in one piece."""
        async for delta in self.generation.deltas():
            delta.choice.text.append(delta.text)
            delta.choice.entries += delta.entries
        choices = self.generation.choices
        name = "chat.completion" if self.chat else "text_completion"
        word = chat_choice if self.chat else text_choice
        told = [word(choice, self.generation.tokenizer) for choice in choices]
        figures = self._usage(choices)
        return encode(Answer(self.id, name, self.created, self.model, told, figures, self._extension()))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The answer in pieces, each the JSON of one event."""
        options = self.request.stream_options
        at_end = options is not None and (options.include_usage or options.continuous_usage_stats)
        always = options is not None and options.continuous_usage_stats
        name = "chat.completion.chunk" if self.chat else "text_completion"
        tokenizer = self.generation.tokenizer
        word: Callable[[Delta], list[Chunk]] = ChatWording(tokenizer) if self.chat else TextWording(tokenizer)
        deltas = self.generation.deltas()
        try:
            async for delta in deltas:
                if not delta.text and delta.choice.finish_reason is None:
                    continue
                figures: Usage | UnsetType | None = UNSET
                if at_end:
                    figures = self._usage([delta.choice]) if always else None
                for chunk in word(delta):
                    yield encode(Answer(self.id, name, self.created, self.model, [chunk], figures))
        finally:
            await deltas.aclose()
        if at_end or self.request.return_spec_tokens_details:
            figures = self._usage(self.generation.choices) if at_end else UNSET
            yield encode(Answer(self.id, name, self.created, self.model, [], figures, self._extension()))

    def _extension(self) -> SglExt | UnsetType:
        if not self.request.return_spec_tokens_details:
            return UNSET
        each = [spec_tokens_details(choice.spec) for choice in self.generation.choices]
        return SglExt(each[0] if len(each) == 1 else each)

    def _usage(self, choices: Sequence[Choice]) -> Usage:
        """A prompt counts once, however many choices it has. A text that the model
        alone could not have written says so unasked."""
        firsts = [c for c in choices if c.index % self.generation.n == 0] or choices[:1]
        spec: SpecStats | None = None
        if self.request.return_spec_tokens_details or not all(choice.spec.true for choice in choices):
            spec = SpecStats()
            for choice in choices:
                spec.merge(choice.spec)
        return usage(
            sum(c.prompt_tokens for c in firsts),
            sum(c.completion_tokens for c in choices),
            sum(c.cached_tokens for c in firsts),
            spec,
        )


def text_choice(choice: Choice, tokenizer: Tokenizer) -> CompletionChoice:
    depths = UNSET if choice.depths is None else choice.depths
    told = None if choice.logprobs is None else completion_logprobs(choice.entries, tokenizer)
    return CompletionChoice(choice.index, "".join(choice.text), choice.finish_reason, told, depths)


def chat_choice(choice: Choice, tokenizer: Tokenizer) -> ChatChoice:
    told = None if choice.logprobs is None else chat_logprobs(choice.entries, tokenizer)
    return ChatChoice(choice.index, Message("assistant", "".join(choice.text)), choice.finish_reason, told)


class TextWording:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, delta: Delta) -> list[Chunk]:
        choice = delta.choice
        told = completion_logprobs(delta.entries, self.tokenizer) if delta.entries else None
        depths: list[tuple[str, int]] | UnsetType = UNSET
        if choice.depths is not None:
            depths, choice.depths = choice.depths, []
        return [CompletionChoice(choice.index, delta.text, choice.finish_reason, told, depths)]


class ChatWording:
    """The first chunk of a choice gives the role, the next its text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.begun: set[int] = set()

    def __call__(self, delta: Delta) -> list[Chunk]:
        index, chunks = delta.choice.index, list[Chunk]()
        if index not in self.begun:
            self.begun.add(index)
            chunks.append(ChatDelta(index, ChatText(role="assistant", content="")))
        text = ChatText(content=delta.text) if delta.text else ChatText()
        told = chat_logprobs(delta.entries, self.tokenizer) if delta.entries else None
        chunks.append(ChatDelta(index, text, delta.choice.finish_reason, told))
        return chunks
