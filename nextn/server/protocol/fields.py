"""Fields that the bodies of several endpoints share, for example prompts, and their checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field, PlainValidator, WithJsonSchema

from nextn.request import SpeculativeParams
from nextn.server.protocol.body import json_type, parse_object, partial_model, schema_of
from nextn.server.protocol.errors import bad_request

MAX_STOP_STRINGS = 16
LONGEST_ID = 256  # characters; the id is in each chunk of a stream
MAX_BIASES = 1024  # as in OpenAI's API; all are checked for each prompt and added for each token
MAX_STOP_REGEXES = 4  # each is searched for at each character

TOKEN_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string", "minLength": 1}, TEXTS]}
TOKENS_SCHEMA: dict[str, Any] = {"anyOf": [TOKEN_IDS, {"type": "array", "items": TOKEN_IDS, "minItems": 1}]}
PROMPT_SCHEMA: dict[str, Any] = {"anyOf": [*TEXT_SCHEMA["anyOf"], *TOKENS_SCHEMA["anyOf"]]}

Seed = Annotated[int, Field(ge=-(2**63), lt=2**64, description="default: random")]


AnswerId = Annotated[str, Field(min_length=1, max_length=LONGEST_ID, description="the answer's id")]


def one_or_more(most: int) -> Callable[[object], object]:
    """A validator for a string or a list of up to `most` strings."""

    def checked(value: object) -> object:
        many = [value] if isinstance(value, str) else value
        if not isinstance(many, list) or not all(isinstance(s, str) and s for s in many):
            raise ValueError("it must be a string or a list of strings, none of them empty")
        if len(many) > most:
            raise ValueError(f"it has {len(many)} strings; {most} are allowed")
        return many

    return checked


def strings_schema(most: int) -> WithJsonSchema:
    one = {"type": "string", "minLength": 1}
    return WithJsonSchema({"anyOf": [one, {"type": "array", "items": one, "maxItems": most}]})


Speculative = partial_model(SpeculativeParams, "Speculative")


def speculative_params(value: object) -> SpeculativeParams:
    """Reads the field `speculative`: an object, or false for no drafts. Raises ValueError or ApiError.
    `SpeculativeParams.check` checks ranges later."""
    if value is False:
        return SpeculativeParams(num_steps=0)
    if not isinstance(value, dict):
        raise ValueError("it must be an object or false")
    return SpeculativeParams(**parse_object(value, Speculative, "speculative").model_dump())


def biases(value: object) -> object:
    """Turns the keys of `logit_bias` from strings, which JSON requires, into token ids. Raises ValueError."""
    if not isinstance(value, dict):
        raise ValueError("it must be an object: token ids and the numbers to add to their logits")
    if len(value) > MAX_BIASES:
        raise ValueError(f"it has {len(value)} token ids; {MAX_BIASES} are allowed")
    try:
        return {int(token): bias for token, bias in value.items()}
    except ValueError as e:
        raise ValueError("its keys must be token ids") from e


Biases = Annotated[
    dict[int, float],
    BeforeValidator(biases),
    Field(
        max_length=MAX_BIASES,
        description="token id -> -100 to 100, added to its logit after the penalties",
    ),
]
SpeculativeField = Annotated[
    SpeculativeParams,
    PlainValidator(speculative_params),
    WithJsonSchema({"anyOf": [schema_of(Speculative), {"const": False}]}),
]
StopStrings = Annotated[
    list[str], BeforeValidator(one_or_more(MAX_STOP_STRINGS)), strings_schema(MAX_STOP_STRINGS)
]
StopPatterns = Annotated[
    list[str], BeforeValidator(one_or_more(MAX_STOP_REGEXES)), strings_schema(MAX_STOP_REGEXES)
]


def prompts(prompt: object, name: str = "prompt") -> list[str | list[int]]:
    """The prompts in the field `name`, as a list; each is text or token ids. Raises ApiError (400)."""
    if isinstance(prompt, str):
        return [nonempty(prompt, name)]
    if isinstance(prompt, list) and prompt:
        if all(type(item) is int for item in prompt):
            return [prompt]
        if all(isinstance(item, str) for item in prompt):
            return [nonempty(item, name) for item in prompt]
        if all(isinstance(item, list) for item in prompt):
            for item in prompt:
                if not all(type(token) is int for token in item):
                    raise bad_request(f"{name}: token ids must be integers", name)
            return [nonempty(item, name) for item in prompt]
        raise bad_request(
            f"{name} must be a string, a list of strings, a list of token ids or a list of such lists; "
            f"this list begins with {json_type(prompt[0])}",
            name,
        )
    if prompt == []:
        raise bad_request(f"{name} is empty", name)
    raise bad_request(f"{name} must be a string or a list, not {json_type(prompt)}", name)


Given = TypeVar("Given", str, list[int])


def nonempty(prompt: Given, name: str) -> Given:
    if not prompt:
        raise bad_request(f"{name} is empty", name)
    return prompt
