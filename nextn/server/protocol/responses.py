"""Answers of the OpenAI API as msgspec structs, because these encode in well under a microsecond per field.

The order of fields is their order in the JSON. A field that is UNSET is left out; None becomes null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from nextn.stats import SpecStats

encode = msgspec.json.Encoder().encode


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int


class SpecDetails(msgspec.Struct):
    """Speculation over all choices. The lists are those of `SpecStats`."""

    verify_steps: int
    accept_length: float
    proposed: list[int]
    accepted: list[int]
    histogram: list[int]
    lossy: bool
    simulated: bool


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int


class Usage(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    spec_details: SpecDetails | UnsetType = UNSET
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


def usage(prompt: int, completion: int, cached: int, spec: SpecStats | None) -> Usage:
    details: SpecDetails | UnsetType = UNSET
    if spec is not None:
        length = round(spec.accept_length, 4)
        details = SpecDetails(
            spec.verify_steps,
            length,
            spec.proposed,
            spec.accepted,
            spec.histogram,
            spec.lossy,
            spec.simulated,
        )
    return Usage(prompt, completion, prompt + completion, PromptTokensDetails(cached), details)


class SpecTokensDetails(msgspec.Struct):
    """Speculation in one choice, under SGLang's names."""

    spec_accept_rate: float
    spec_accept_length: float
    spec_num_correct_drafts: int
    spec_num_proposed_drafts: int
    spec_verify_ct: int
    spec_correct_drafts_histogram: list[int]
    spec_lossy: bool  # this field and the next are nextn's own
    spec_simulated: bool


def spec_tokens_details(spec: SpecStats) -> SpecTokensDetails:
    return SpecTokensDetails(
        spec.accept_rate,
        spec.accept_length,
        sum(spec.accepted),
        sum(spec.proposed),
        spec.verify_steps,
        spec.histogram,
        spec.lossy,
        spec.simulated,
    )


class SglExt(msgspec.Struct):
    """SGLang's additions to OpenAI's answers. spec_tokens_details: a list if there are several choices."""

    spec_tokens_details: SpecTokensDetails | list[SpecTokensDetails]


class CompletionLogprobs(msgspec.Struct):
    """Log-probabilities of a completion. Item i of each list is about token i. `top_logprobs[i]` includes the
    token itself."""

    text_offset: list[int]  # number of characters of the choice's text before the token
    token_logprobs: list[float | None]  # None for the first token of a prompt
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class TopLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct):
    content: list[ChatLogprob]
    refusal: None = None


class DraftStep(msgspec.Struct):
    """One step of a choice, for `return_draft_steps`."""

    seconds: float  # from the request's arrival in the engine to the step's end
    tokens: int  # committed
    drafts: list[str]  # the text of each draft token
    accepted: list[int]  # indices in `drafts`
    parents: list[int] | UnsetType = UNSET  # in a tree: the parent of each draft, -1 for the root


class CompletionChoice(msgspec.Struct):
    index: int
    text: str
    finish_reason: str | None = None
    logprobs: CompletionLogprobs | msgspec.Raw | None = None
    draft_depths: list[tuple[str, int]] | UnsetType = UNSET
    draft_steps: list[DraftStep] | UnsetType = UNSET
    matched_stop: int | str | UnsetType = UNSET  # SGLang's: the end token's id, or the stop string
    token_ids: list[int] | UnsetType = UNSET  # this and the next are vLLM's
    prompt_token_ids: list[int] | UnsetType = UNSET


class FunctionCall(msgspec.Struct):
    arguments: str  # JSON, unless the model wrote something else
    name: str | UnsetType = UNSET


class ToolCall(msgspec.Struct):
    """A tool call, or a chunk's part of it. The first chunk has the name, later ones only arguments."""

    function: FunctionCall
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET
    index: int | UnsetType = UNSET  # in chunks


class Message(msgspec.Struct):
    role: str
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType | None = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: Message
    finish_reason: str | None
    logprobs: ChatLogprobs | None = None
    matched_stop: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class Delta(msgspec.Struct):
    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    index: int
    delta: Delta
    finish_reason: str | None = None
    logprobs: ChatLogprobs | None = None
    matched_stop: int | str | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


AnyChoice = TypeVar("AnyChoice", CompletionChoice, ChatChoice, ChatDelta)


class Answer(msgspec.Struct, Generic[AnyChoice]):
    """A complete answer or one chunk of it, as `object` says. `usage` is UNSET if it was not requested."""

    id: str
    object: str
    created: int
    model: str
    choices: Sequence[AnyChoice]
    usage: Usage | UnsetType | None = UNSET
    sglext: SglExt | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # only in chats
    kv_transfer_params: dict[str, Any] | UnsetType = UNSET  # the gateway sends them to the decode server


class Model(msgspec.Struct):
    id: str
    created: int
    max_model_len: int | None
    object: str = "model"
    owned_by: str = "nextn"
    root: str | UnsetType = UNSET
    parent: None = None


class ModelList(msgspec.Struct):
    data: list[Model]
    object: str = "list"
