"""One prompt or several, as text or token ids: what bodies may say, and what that means."""

from __future__ import annotations

from typing import Any, TypeVar

from nextn.server.protocol.body import json_type
from nextn.server.protocol.errors import bad_request

TOKEN_IDS: dict[str, Any] = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
TEXTS: dict[str, Any] = {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1}
TEXT_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "string", "minLength": 1}, TEXTS]}
TOKENS_SCHEMA: dict[str, Any] = {"anyOf": [TOKEN_IDS, {"type": "array", "items": TOKEN_IDS, "minItems": 1}]}
PROMPT_SCHEMA: dict[str, Any] = {"anyOf": [*TEXT_SCHEMA["anyOf"], *TOKENS_SCHEMA["anyOf"]]}


def prompts(prompt: object, name: str = "prompt") -> list[str | list[int]]:
    """One prompt or several, each text or token ids; field `name`. Raises ApiError."""
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
