"""/generate: turns a generation into SGLang's native answers. Each chunk of a stream has the whole text so
far.

Lengths and acceptance are counted in nextn's way. Lengths exclude the end token. The accept length excludes
the first token, because no verify step committed it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from nextn.request import TokenLogprob
from nextn.server.answers.choice import Choice
from nextn.server.answers.generation import Generation
from nextn.server.protocol.native import GenerateRequest, PromptParams
from nextn.server.protocol.responses import encode, spec_tokens_details
from nextn.tokenizer.tokenizer import Tokenizer

# Log-probability (None for a token without a predecessor), token id, the token's text
Scored = tuple[float | None, int, str | None]


class FinishReason(msgspec.Struct):
    type: str
    matched: int | str | UnsetType | None = UNSET  # the stop string, or the stop token's id
    length: int | UnsetType = UNSET


class NativeAnswer(msgspec.Struct):
    text: str
    output_ids: list[int]
    meta_info: dict[str, Any]
    index: int | UnsetType = UNSET
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET  # the gateway sends them to the decode server


class NativeReply:
    """Makes the answer to one /generate request, whole or in chunks. params: one for each prompt, in the
    generation's order."""

    def __init__(
        self, request: GenerateRequest, params: Sequence[PromptParams], generation: Generation
    ) -> None:
        self.request, self.params, self.generation = request, params, generation
        self.many = request.batch or generation.n > 1
        # Log-probabilities by prompt index, made once for all choices and chunks
        self._of_prompts: dict[int, dict[str, object]] = {}

    async def whole(self) -> bytes:
        """The complete answer as JSON; a list of answers for a list of prompts, or if n > 1."""
        async for delta in self.generation.deltas():
            delta.choice.text.append(delta.text)
        answers = [self._answer(choice) for choice in self.generation.choices]
        return encode(answers if self.many else answers[0])

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yields answers as JSON, one for each event. Each has the whole text of its choice so far."""
        deltas = self.generation.deltas()
        try:
            async for delta in deltas:
                delta.choice.text = ["".join(delta.choice.text) + delta.text]
                answer = self._answer(delta.choice)
                if self.many:
                    answer.index = delta.choice.index
                yield encode(answer)
        finally:
            await deltas.aclose()

    def _answer(self, choice: Choice) -> NativeAnswer:
        params = self.params[choice.index // self.generation.n]
        meta: dict[str, object] = {
            "id": choice.id,
            "finish_reason": finish_reason(choice),
            "prompt_tokens": choice.prompt_tokens,
            "completion_tokens": choice.completion_tokens,
            "cached_tokens": choice.cached_tokens,
        }
        if params.logprobs:
            names = self.generation.tokenizer if self.request.return_text_in_logprobs else None
            meta |= self._prompt_logprobs(choice, params, names)
            meta |= logprobs(choice, params, names)
        if choice.finish_reason is not None:
            meta["e2e_latency"] = choice.last_output - self.generation.arrival
            meta |= msgspec.structs.asdict(spec_tokens_details(choice.spec))
        answer = NativeAnswer("".join(choice.text), choice.tokens, meta)
        if self.generation.transfer_params is not None:
            answer.kv_transfer_params = self.generation.transfer_params
        return answer

    def _prompt_logprobs(
        self, choice: Choice, params: PromptParams, names: Tokenizer | None
    ) -> dict[str, object]:
        index = choice.index // self.generation.n
        if index in self._of_prompts:
            return self._of_prompts[index]
        worded = prompt_logprobs(choice, params, names)
        if choice.prompt_logprobs:
            self._of_prompts[index] = worded
        return worded


def finish_reason(choice: Choice) -> FinishReason | None:
    if choice.finish_reason == "stop":
        return FinishReason("stop", matched=choice.matched)
    if choice.finish_reason == "length":
        return FinishReason("length", length=choice.request.params.max_tokens)
    return None if choice.finish_reason is None else FinishReason(choice.finish_reason)


def logprobs(choice: Choice, params: PromptParams, names: Tokenizer | None) -> dict[str, object]:
    """One entry for each token of `output_ids`. names: gives the tokens' texts; None leaves them out."""
    found: dict[str, object] = {
        "output_token_logprobs": list(scored(choice.tokens, choice.token_logprobs, names))
    }
    if params.tops:
        found["output_top_logprobs"] = [tops(each, names) for each in choice.token_logprobs]
    return found


def prompt_logprobs(choice: Choice, params: PromptParams, names: Tokenizer | None) -> dict[str, object]:
    """One entry for each token of the prompt from `params.start` on, in JSON. The first has no
    log-probability, as in SGLang. The list is empty if the request was aborted before its prompt had
    scores."""
    prompt = choice.request.tokens
    start = len(prompt) if params.start < 0 else params.start
    given = choice.prompt_logprobs[start:]
    before = [None, *given[1:]] if given else []
    entries = list(scored(prompt[start : start + len(before)], before, names))
    found: dict[str, object] = {"input_token_logprobs": msgspec.Raw(encode(entries))}
    if params.tops:
        found["input_top_logprobs"] = msgspec.Raw(encode([tops(each, names) for each in before]))
    return found


def scored(
    tokens: Sequence[int], many: Sequence[TokenLogprob | None], names: Tokenizer | None
) -> Iterator[Scored]:
    for token, each in zip(tokens, many, strict=True):
        yield (None if each is None else each.logprob, token, spelled(token, names))


def tops(each: TokenLogprob | None, names: Tokenizer | None) -> list[Scored] | None:
    """The most likely tokens at one position, best first."""
    if each is None:
        return None
    return [(logprob, token, spelled(token, names)) for token, logprob in each.top]


def spelled(token: int, names: Tokenizer | None) -> str | None:
    return None if names is None else names.token_names[token]
