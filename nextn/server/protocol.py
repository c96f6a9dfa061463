"""Request bodies, and those of the OpenAI API: which fields there are, what is refused, what becomes of them.

A field that is known and cannot be honoured is an error that names it, unless it is at its default. Keys
that nobody knows are tolerated: gateways add their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

import pydantic_core
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from nextn.request import SamplingParams, SpeculativeParams
from nextn.server.errors import bad_request

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16
MAX_LOGPROBS = 20

# Field -> the values at which it asks for nothing; null is always one. Other engines' fields included.
REFUSED: dict[str, tuple[object, ...]] = {
    "logit_bias": ({},),
    "use_beam_search": (False,),
    "length_penalty": (1, 1.0),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "return_token_ids": (False,),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "structural_tag": (),
    "stop_regex": ([], ""),
    "no_stop_trim": (False,),
    "include_stop_str_in_output": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_special_tokens": (True,),
    "bad_words": ([],),
    "allowed_token_ids": ([],),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "custom_params": ({},),
    "truncate_prompt_tokens": (),
    "lora_path": (),
    "session_params": ({},),
    "return_hidden_states": (False,),
    "priority": (0,),
    "prompt_embeds": (),
    "input_ids": (),
    "vllm_xargs": ({},),
}
REFUSED_IN_COMPLETIONS = REFUSED | {"top_logprobs": (0,), "best_of": (1,), "suffix": ("",)}
REFUSED_IN_CHAT = REFUSED | {
    "tools": ([],), "tool_choice": ("none", "auto"), "functions": ([],), "function_call": ("none", "auto"),
    "response_format": ({"type": "text"},), "modalities": (["text"],), "audio": (),
    "web_search_options": (), "prediction": (), "chat_template": (), "chat_template_kwargs": ({},),
    "continue_final_message": (False,), "add_generation_prompt": (True,), "documents": ([],),
    "echo": (False,), "reasoning_effort": ("none",), "best_of": (1,),
}  # fmt: skip


def stop_strings(value: object) -> object:
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(s, str) and s for s in strings):
        raise ValueError("it must be a string or a list of strings, none of them empty")
    if len(strings) > MAX_STOP_STRINGS:
        raise ValueError(f"it has {len(strings)} strings; {MAX_STOP_STRINGS} are allowed")
    return strings


class Body(BaseModel):
    """What one endpoint takes, to be read with `parse`."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)
    refused: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    def check(self) -> None:
        """Raises ApiError for fields that do not go together."""


class Speculative(Body):
    """`SpeculativeParams`, which has the ranges."""

    model_config = ConfigDict(extra="forbid")

    num_steps: int | None = None
    verify: str | None = None
    accept_threshold_single: float | None = None
    accept_threshold_acc: float | None = None

    @property
    def params(self) -> SpeculativeParams:
        return SpeculativeParams(**self.model_dump())


def false_is_off(value: object) -> object:
    if value is False:
        return {"num_steps": 0}
    if not isinstance(value, dict):
        raise ValueError("it must be an object or false")
    return value


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class CommonRequest(Body):
    """What both endpoints take. The ranges of the sampling fields are `SamplingParams.check`'s."""

    model: str | None = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Annotated[int, Field(lt=2**31)] = -1
    min_p: float = 0.0
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64, description="missing: drawn at random")] | None = None
    stop: Annotated[list[str], BeforeValidator(stop_strings)] = []
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(description="before it no end token ends the text")] = 0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stream: bool = False
    stream_options: StreamOptions | None = None
    user: str | None = None
    speculative: Annotated[Speculative, BeforeValidator(false_is_off)] = Speculative()
    return_spec_tokens_details: Annotated[
        bool, Field(description="usage gets spec_details: what speculation did")
    ] = False

    def check(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only allowed when stream is true", "stream_options")

    @property
    def echoes(self) -> bool:
        """Does the answer begin with the prompt?"""
        return False

    @property
    def tops(self) -> int | None:
        """How many of the most likely tokens are told with each log-probability; None: none is told."""
        return None

    def sampling(self, max_tokens: int, seed: int, vocab_size: int) -> SamplingParams:
        """Checked parameters of the first choice. Raises ApiError naming the field."""
        if max_tokens == 0 and not self.echoes:
            raise bad_request("max_tokens is 0; it must be at least 1, or 0 with echo", "max_tokens")
        params = SamplingParams(
            max_tokens=max_tokens,
            min_tokens=self.min_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            seed=seed % 2**64,
            ignore_eos=self.ignore_eos,
            stop_token_ids=tuple(self.stop_token_ids),
            speculative=self.speculative.params,
            logprobs=self.tops,
            prompt_logprobs=self.tops if self.echoes else None,
        )
        try:
            params.check(vocab_size)
        except ValueError as e:
            raise bad_request(str(e), str(e).partition(" ")[0]) from e
        return params


class CompletionRequest(CommonRequest):
    refused = REFUSED_IN_COMPLETIONS

    prompt: Any  # checked by `prompts`: a union's errors would name every branch
    max_tokens: Annotated[int, Field(description="0, with echo: the prompt alone")] | None = None
    echo: Annotated[bool, Field(description="the answer begins with the prompt")] = False
    logprobs: (
        Annotated[
            int,
            Field(ge=0, le=MAX_LOGPROBS, description="with so many of the most likely tokens beside each"),
        ]
        | None
    ) = None
    return_draft_depths: Annotated[
        bool, Field(description="choices get draft_depths: [text, depth it was drafted at] per token")
    ] = False

    @property
    def echoes(self) -> bool:
        return self.echo

    @property
    def tops(self) -> int | None:
        return self.logprobs


class ChatRequest(CommonRequest):
    refused = REFUSED_IN_CHAT

    messages: list[dict[str, Any]]
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] = 0

    def check(self) -> None:
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise bad_request("top_logprobs is only allowed when logprobs is true", "top_logprobs")

    @property
    def tops(self) -> int | None:
        return self.top_logprobs if self.logprobs else None


Kind = TypeVar("Kind", bound=Body)


def parse(body: bytes, kind: type[Kind]) -> Kind:
    """A body from its JSON. Raises ApiError saying what is wrong with which field."""
    try:
        data = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as e:
        raise bad_request(f"the body is not valid JSON: {e}") from e
    if not isinstance(data, dict):
        raise bad_request(f"the body must be a JSON object, not {json_type(data)}")
    data = {name: value for name, value in data.items() if value is not None}
    refuse(data, kind.refused)
    try:
        request = kind.model_validate(data)
    except ValidationError as e:
        raise first_error(e) from e
    request.check()
    return request


def refuse(data: Mapping[str, object], table: Mapping[str, tuple[object, ...]]) -> None:
    for name in sorted(data.keys() & table.keys()):
        # `is` for booleans, as 1 == True.
        if not any(data[name] == ok and type(data[name]) is type(ok) for ok in table[name]):
            raise bad_request(f"{name} is not supported; leave it out", name)


def first_error(error: ValidationError) -> Exception:
    first = error.errors(include_url=False, include_context=False)[0]
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in first["loc"]).lstrip(".")
    message = first["msg"].removeprefix("Value error, ")
    if first["type"] == "missing":
        return bad_request(f"{where} is missing", where)
    if first["type"] == "extra_forbidden":
        return bad_request(f"{where} is not known; leave it out", where)
    return bad_request(f"{where}: {message} (got {shortened(first['input'])})", where)


def prompts(prompt: object) -> list[str | list[int]]:
    """One prompt or several, each text or token ids. Raises ApiError."""
    if isinstance(prompt, str):
        return [nonempty(prompt)]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return [nonempty(item) for item in prompt]
        if all(isinstance(item, list) for item in prompt):
            for item in prompt:
                if not all(type(token) is int for token in item):
                    raise bad_request("prompt: token ids must be integers", "prompt")
            return [nonempty(item) for item in prompt]
        raise bad_request(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists; "
            f"this list begins with {json_type(prompt[0])}",
            "prompt",
        )
    if prompt == []:
        raise bad_request("prompt is empty", "prompt")
    raise bad_request(f"prompt must be a string or a list, not {json_type(prompt)}", "prompt")


Prompt = TypeVar("Prompt", str, list[int])


def nonempty(prompt: Prompt) -> Prompt:
    if not prompt:
        raise bad_request("prompt is empty", "prompt")
    return prompt


def json_type(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def shortened(value: object, limit: int = 60) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 1] + "…"
