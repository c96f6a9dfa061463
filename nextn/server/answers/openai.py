"""/v1/completions and /v1/chat/completions: turns a generation's deltas into OpenAI's answers and chunks."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Callable, Sequence

from msgspec import UNSET, Raw, UnsetType

from nextn.server.answers.chat import ChatWording, chat_choice, matched_stop, reasoning_tokens
from nextn.server.answers.choice import Choice, Delta
from nextn.server.answers.generation import Generation
from nextn.server.answers.logprobs import completion_logprobs
from nextn.server.parsers.answer import CONTENT, AnswerFormat
from nextn.server.protocol.openai import ChatRequest, CommonRequest
from nextn.server.protocol.responses import (
    Answer,
    ChatChoice,
    ChatDelta,
    CompletionChoice,
    CompletionLogprobs,
    CompletionTokensDetails,
    DraftStep,
    SglExt,
    Usage,
    encode,
    spec_tokens_details,
    usage,
)
from nextn.stats import SpecStats
from nextn.tokenizer.tokenizer import Tokenizer

Whole = CompletionChoice | ChatChoice
Chunk = CompletionChoice | ChatDelta


class Reply:
    """Makes one request's answer, whole or in chunks. answer_format: how a chat's text is split into content,
    reasoning and tool calls."""

    def __init__(
        self,
        request: CommonRequest,
        generation: Generation,
        model: str,
        answer_format: AnswerFormat = CONTENT,
    ) -> None:
        self.request, self.generation = request, generation
        self.model, self.answer_format = model, answer_format
        self.chat = isinstance(request, ChatRequest)
        self.id = generation.id
        self.created = int(time.time())

    async def whole(self) -> bytes:
        """The complete answer as JSON."""
        async for delta in self.generation.deltas():
            delta.choice.text.append(delta.text)
            delta.choice.entries += delta.entries
        choices, tokenizer = self.generation.choices, self.generation.tokenizer
        name = "chat.completion" if self.chat else "text_completion"
        worded: list[Whole]
        if self.chat:
            worded = [chat_choice(choice, tokenizer, self.answer_format) for choice in choices]
        else:
            choices = self._best()
            worded = [text_choice(choice, tokenizer, i) for i, choice in enumerate(choices)]
        used = self._usage(self.generation.choices)
        used.completion_tokens_details = self._details()
        prompt: list[int] | UnsetType = UNSET
        if self.request.return_token_ids:
            ids = TokenIds()
            for choice, each in zip(choices, worded, strict=True):
                prompt = ids.add(choice, [each])
        extension, params = self._extension(choices), self._transfer_params()
        return encode(
            Answer(self.id, name, self.created, self.model, worded, used, extension, prompt, params)
        )

    def _best(self) -> list[Choice]:
        """The n best candidates of each prompt, by mean log-probability per token, best first."""
        n, candidates = self.request.n, self.generation.n
        if candidates == n:
            return self.generation.choices
        best: list[Choice] = []
        for first in range(0, len(self.generation.choices), candidates):
            of_prompt = self.generation.choices[first : first + candidates]
            best += sorted(of_prompt, key=likelihood, reverse=True)[:n]
        return best

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields the answer in chunks, each the JSON of one event."""
        options = self.request.stream_options
        at_end = options is not None and (options.include_usage or options.continuous_usage_stats)
        always = options is not None and options.continuous_usage_stats
        name = "chat.completion.chunk" if self.chat else "text_completion"
        tokenizer = self.generation.tokenizer
        word: Callable[[Delta], Sequence[Chunk]]
        word = ChatWording(tokenizer, self.answer_format) if self.chat else TextWording(tokenizer)
        ids = TokenIds() if self.request.return_token_ids else None
        prompt: list[int] | UnsetType = UNSET
        params = self._transfer_params()
        deltas = self.generation.deltas()
        try:
            async for delta in deltas:
                if not delta.text and delta.choice.finish_reason is None:
                    continue
                used: Usage | UnsetType | None = UNSET
                if at_end:
                    used = self._usage([delta.choice]) if always else None
                chunks = word(delta)
                if ids is not None and chunks:
                    prompt = ids.add(delta.choice, chunks)
                for chunk in chunks:
                    yield encode(
                        Answer(
                            self.id, name, self.created, self.model, [chunk], used, UNSET, prompt, params
                        )
                    )  # fmt: skip
                    prompt = UNSET
        finally:
            await deltas.aclose()
        if at_end or self.request.return_spec_tokens_details:
            choices, used = self.generation.choices, UNSET
            if at_end:
                used = self._usage(choices)
                used.completion_tokens_details = self._details()
            extension = self._extension(choices)
            yield encode(Answer(self.id, name, self.created, self.model, [], used, extension))

    def _transfer_params(self) -> dict[str, object] | UnsetType:
        return UNSET if self.generation.transfer_params is None else self.generation.transfer_params

    def _extension(self, choices: Sequence[Choice]) -> SglExt | UnsetType:
        if not self.request.return_spec_tokens_details:
            return UNSET
        each = [spec_tokens_details(choice.spec) for choice in choices]
        return SglExt(each[0] if len(each) == 1 else each)

    def _details(self) -> CompletionTokensDetails | UnsetType:
        if self.answer_format.reasoning is None:
            return UNSET
        spent = [reasoning_tokens(choice, self.answer_format) for choice in self.generation.choices]
        return CompletionTokensDetails(sum(spent))

    def _usage(self, choices: Sequence[Choice]) -> Usage:
        """The tokens used. A prompt counts once for all its choices. The usage has `spec_details` if they
        were requested, or if speculation may have changed the text (lossy verification, simulated
        acceptance)."""
        firsts = [c for c in choices if c.index % self.generation.n == 0] or choices[:1]
        spec: SpecStats | None = None
        if self.request.return_spec_tokens_details or not all(choice.spec.lossless for choice in choices):
            spec = SpecStats()
            for choice in choices:
                spec.merge(choice.spec)
        return usage(
            sum(c.prompt_tokens for c in firsts),
            sum(c.completion_tokens for c in choices),
            sum(c.cached_tokens for c in firsts),
            spec,
        )


def likelihood(choice: Choice) -> float:
    """Mean log-probability of the choice's tokens, including a stop token. Minus infinity without tokens."""
    count = choice.completion_tokens + isinstance(choice.matched, int)
    return choice.logprob / count if count else -math.inf


def text_choice(choice: Choice, tokenizer: Tokenizer, index: int) -> CompletionChoice:
    depths = UNSET if choice.depths is None else choice.depths
    logprobs: CompletionLogprobs | Raw | None = None
    if choice.logprobs is not None:
        made = completion_logprobs(choice.entries, tokenizer)
        logprobs = made if choice.prompt_entries is None else choice.prompt_entries.before(made)
    text = "".join(choice.text)
    steps = UNSET if choice.steps is None else choice.steps
    return CompletionChoice(index, text, choice.finish_reason, logprobs, depths, steps, matched_stop(choice))


class TextWording:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, delta: Delta) -> list[Chunk]:
        choice = delta.choice
        logprobs: CompletionLogprobs | Raw | None = None
        if choice.logprobs is not None:
            made = completion_logprobs(delta.entries, self.tokenizer)
            logprobs = made if delta.prompt is None else delta.prompt.before(made)
        depths: list[tuple[str, int]] | UnsetType = UNSET
        if choice.depths is not None:
            depths, choice.depths = choice.depths, []
        steps: list[DraftStep] | UnsetType = UNSET
        if choice.steps is not None:
            steps, choice.steps = choice.steps, []
        chunk = CompletionChoice(choice.index, delta.text, choice.finish_reason, logprobs, depths, steps)
        chunk.matched_stop = matched_stop(choice)
        return [chunk]


class TokenIds:
    """return_token_ids, in vLLM's form: adds the token ids of answer and prompt to the text.

    Each chunk of a stream has the tokens that came since the last chunk, even if their text is held back for
    a later chunk. A choice's first chunk has the prompt's tokens: in the choice for completions, in the
    answer for chats.
    """

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # number of tokens sent, by the choice's index

    def add(self, choice: Choice, worded: Sequence[Whole | Chunk]) -> list[int] | UnsetType:
        """Adds token ids to `worded`: a choice's complete answer, or its new chunks. Returns the prompt's
        tokens if the caller must put them into the answer itself, otherwise UNSET."""
        tokens = choice.tokens + ([choice.matched] if isinstance(choice.matched, int) else [])
        first, last = worded[0], worded[-1]
        last.token_ids = tokens[self._sent.get(choice.index, 0) :]
        begins = choice.index not in self._sent
        self._sent[choice.index] = len(tokens)
        if not begins:
            return UNSET
        if isinstance(first, CompletionChoice):
            first.prompt_token_ids = choice.request.tokens
            return UNSET
        return choice.request.tokens
