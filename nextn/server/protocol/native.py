"""The body of SGLang's native endpoint, /generate: one or more prompts, each with its own parameters.

A field may have one value for all prompts, or a list with one value for each. An unknown key in
`sampling_params` is an error, because a misspelt key would silently change the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import ConfigDict, Field, WithJsonSchema

from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.protocol.body import json_type, parse_object, refuse, schema_of
from nextn.server.protocol.errors import bad_request
from nextn.server.protocol.fields import (
    LONGEST_ID,
    TEXT_SCHEMA,
    TOKENS_SCHEMA,
    Seed,
    SpeculativeField,
    prompts,
)
from nextn.server.protocol.handoff import PARAMS, HandedOff
from nextn.server.protocol.openai import MAX_LOGPROBS, OF_ANSWERS, REFUSED, Sampling
from nextn.server.protocol.routed import Routed

REFUSED_SAMPLING: dict[str, tuple[object, ...]] = {
    "custom_params": REFUSED["custom_params"], "stream_interval": (1,), "beam_width": (1,),
}  # fmt: skip
REFUSED_IN_GENERATE: dict[str, tuple[object, ...]] = {
    name: REFUSED[name]
    for name in (
        "lora_path", "session_params", "return_hidden_states", "custom_logit_processor",
        "cache_salt", "extra_key",
    )
} | {
    "input_embeds": (), "image_data": (), "video_data": (), "audio_data": (), "token_ids_logprob": ([],),
    "return_sampling_mask": (False,), "return_flat_raw_top_logprobs": (False,), "return_entropy": (False,),
    "return_routed_experts": (False,), "return_indexer_topk": (False,), "return_prompt_token_ids": (False,),
    "positional_embed_overrides": (), "multi_item_delimiter_indices": (), "max_thinking_tokens": (),
    "require_reasoning": (False,), "background": (False,),
}  # fmt: skip
# The names of fields in the engine's messages, and in this endpoint.
NAMES = (("max_tokens", "max_new_tokens"), ("min_tokens", "min_new_tokens"), ("seed is", "sampling_seed is"))


class NativeSampling(Sampling):
    """The object `sampling_params` of one prompt."""

    model_config = ConfigDict(extra="forbid")

    max_new_tokens: (
        Annotated[int, Field(description="default: 128, at most the room in the context")] | None
    ) = None
    min_new_tokens: Annotated[int, Field(description="minimum number of tokens before an end token")] = 0
    sampling_seed: Seed | None = None


class PromptParams(NamedTuple):
    """The parameters of one prompt. logprobs: return log-probabilities, also for the prompt's tokens from
    `start` on, each with the `tops` most likely tokens."""

    sampling: NativeSampling
    rid: str  # "": the server makes an id
    logprobs: bool
    start: int  # -1: no log-probabilities of the prompt
    tops: int

    def prompt_only(self) -> PromptParams:
        """A copy without the parameters that affect only the answer."""
        return self._replace(sampling=self.sampling.model_copy(update=OF_ANSWERS | {"min_new_tokens": 0}))

    def params(
        self, length: int, max_tokens: int, seed: int, speculative: SpeculativeParams, vocab_size: int
    ) -> SamplingParams:
        """Checked parameters of the first choice, for a prompt of `length` tokens. Raises ApiError (400) that
        names the field."""
        if self.start > length:
            message = f"logprob_start_len is {self.start}; the prompt has {length} tokens"
            raise bad_request(message, "logprob_start_len")
        tops = self.tops if self.logprobs else None
        try:
            return self.sampling.params(
                vocab_size,
                max_tokens=max_tokens,
                min_tokens=self.sampling.min_new_tokens,
                seed=seed % 2**64,
                speculative=speculative,
                logprobs=tops,
                prompt_logprobs=tops if 0 <= self.start < length else None,
            )
        except ValueError as e:
            message = str(e)
            for ours, theirs in NAMES:
                message = message.replace(ours, theirs)
            if not message.startswith("speculative."):
                message = f"sampling_params.{message}"
            raise bad_request(message, message.partition(" ")[0]) from e


def one_or_many(schema: dict[str, Any]) -> WithJsonSchema:
    """The schema of one value for all prompts, or a list with one for each."""
    return WithJsonSchema({"anyOf": [schema, {"type": "array", "items": schema}]})


NO_GENERATE = {name: f"send it as sampling_params.{name}" for name in NativeSampling.model_fields} | {
    "max_tokens": "this is for the OpenAI endpoints; use sampling_params.max_new_tokens here",
    "max_completion_tokens": "this is for the OpenAI endpoints; use sampling_params.max_new_tokens here",
    "min_tokens": "this is for the OpenAI endpoints; use sampling_params.min_new_tokens here",
    "seed": "this is for the OpenAI endpoints; use sampling_params.sampling_seed here",
    "response_format": "this is for the OpenAI endpoints; use sampling_params.json_schema here",
    "prompt": "this is for /v1/completions; use text or input_ids here",
    "messages": "this is for /v1/chat/completions; use text or input_ids here",
}


OF_PREFILL = ("max_tokens", "max_completion_tokens", "min_tokens")


class GenerateRequest(Routed, HandedOff):
    refused, elsewhere = REFUSED_IN_GENERATE, NO_GENERATE

    # Checked by `prompts` and `prompt_params`, because pydantic's errors for a union name all its branches.
    text: Annotated[Any, WithJsonSchema(TEXT_SCHEMA)] = None
    input_ids: Annotated[Any, WithJsonSchema(TOKENS_SCHEMA)] = None
    sampling_params: Annotated[Any, one_or_many(schema_of(NativeSampling))] = Field(default_factory=dict)
    rid: Annotated[Any, one_or_many({"type": "string"})] = None
    return_logprob: Annotated[Any, one_or_many({"type": "boolean"})] = None
    logprob_start_len: Annotated[Any, one_or_many({"type": "integer", "minimum": -1})] = None
    top_logprobs_num: Annotated[
        Any, one_or_many({"type": "integer", "minimum": 0, "maximum": MAX_LOGPROBS})
    ] = None
    return_text_in_logprobs: bool = False
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] = 0
    stream: bool = False
    speculative: SpeculativeField = SpeculativeParams()

    @classmethod
    def misplaced(cls, data: Mapping[str, object]) -> Mapping[str, str]:
        """Accepts the fields OF_PREFILL in a prefill server's body: vLLM's gateway adds them for each
        endpoint."""
        params = data.get(PARAMS)
        if not (isinstance(params, dict) and params.get("do_remote_decode")):
            return cls.elsewhere
        return {name: rule for name, rule in cls.elsewhere.items() if name not in OF_PREFILL}

    def check(self) -> None:
        super().check()
        if (self.text is None) == (self.input_ids is None):
            raise bad_request("give either text or input_ids", "text")

    @property
    def prompt_field(self) -> str:
        return "text" if self.input_ids is None else "input_ids"

    @property
    def batch(self) -> bool:
        """Whether the request has a list of prompts, so that the answer is a list."""
        if self.input_ids is None:
            return isinstance(self.text, list)
        return isinstance(self.input_ids[0], list)

    def prompts(self) -> list[str | list[int]]:
        name, kind = self.prompt_field, str if self.input_ids is None else list
        many = prompts(getattr(self, name), name)
        if not all(isinstance(prompt, kind) for prompt in many):
            raise bad_request(f"{name}: strings go into text, token ids into input_ids", name)
        return many

    def prompt_params(self, count: int) -> list[PromptParams]:
        """The parameters of each of `count` prompts. Raises ApiError (400) that names the field."""
        sampling = sampling_of(self.sampling_params, count)
        if any(each.n != sampling[0].n for each in sampling):
            raise bad_request("sampling_params: n must be the same for all prompts", "sampling_params")
        logprobs = one_per_prompt(self.return_logprob, count, "return_logprob", False)
        starts = one_per_prompt(self.logprob_start_len, count, "logprob_start_len", -1)
        tops = one_per_prompt(self.top_logprobs_num, count, "top_logprobs_num", 0)
        fields = zip(sampling, self._rids(count), logprobs, starts, tops, strict=True)
        params = [PromptParams(*each) for each in fields]
        for each in params:
            if not 0 <= each.tops <= MAX_LOGPROBS:
                rule = f"it must be between 0 and {MAX_LOGPROBS}"
                raise bad_request(f"top_logprobs_num is {each.tops}; {rule}", "top_logprobs_num")
            if each.start < -1:
                rule = "it must be -1 (none of the prompt) or a position in the prompt"
                raise bad_request(f"logprob_start_len is {each.start}; {rule}", "logprob_start_len")
        return params

    def _rids(self, count: int) -> list[str]:
        """The id of each prompt. For a list of prompts, a single string is the prefix of their ids."""
        if self.batch and isinstance(self.rid, str):
            rids = [f"{self.rid}_{i}" for i in range(count)]
        else:
            rids = one_per_prompt(self.rid, count, "rid", "")
        if any(len(rid) > LONGEST_ID for rid in rids):
            raise bad_request(f"rid has more than {LONGEST_ID} characters", "rid")
        named = [rid for rid in rids if rid]
        if len(set(named)) < len(named):
            raise bad_request("rid: the ids must differ", "rid")
        return rids


def sampling_of(given: object, count: int) -> list[NativeSampling]:
    """The `sampling_params` of each prompt. Raises ApiError (400)."""
    if not isinstance(given, list):
        return [one_sampling(given, "sampling_params")] * count
    check_length(given, count, "sampling_params")
    return [one_sampling(each, f"sampling_params[{i}]") for i, each in enumerate(given)]


def one_sampling(given: object, where: str) -> NativeSampling:
    if not isinstance(given, dict):
        raise bad_request(f"{where} must be an object, not {json_type(given)}", where)
    fields = {name: value for name, value in given.items() if value is not None}
    refuse(fields, REFUSED_SAMPLING, f"{where}.")
    known = {name: value for name, value in fields.items() if name not in REFUSED_SAMPLING}
    return parse_object(known, NativeSampling, where)


Value = TypeVar("Value", bool, int, str)
KINDS = {bool: "a boolean", int: "a whole number", str: "a string"}


def one_per_prompt(value: Any, count: int, name: str, default: Value) -> list[Value]:
    """A list with one value for each prompt. value: one for all prompts, or a list. Raises ApiError (400)."""
    many = value if isinstance(value, list) else [value] * count
    check_length(many, count, name)
    kind = type(default)
    if not all(each is None or type(each) is kind for each in many):
        raise bad_request(f"{name} must be {KINDS[kind]}, or a list with one for each prompt", name)
    return [default if each is None else each for each in many]


def check_length(many: list[Any], count: int, name: str) -> None:
    if len(many) != count:
        raise bad_request(f"{name} is a list of {len(many)}; the number of prompts is {count}", name)
