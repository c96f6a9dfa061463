"""Checks a chat's messages, field by field. A field that the chat template cannot use is an error that names
it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nextn.server.protocol.body import json_type, not_known, shortened
from nextn.server.protocol.errors import bad_request
from nextn.tokenizer.chat import ChatTemplate

ROLES = ("system", "developer", "user", "assistant", "tool")  # a a template may know more roles
FIELDS = {
    "assistant": {"role", "content", "name", "tool_calls", "reasoning_content"},
    "tool": {"role", "content", "name", "tool_call_id"},
}
OTHERS = {"role", "content", "name"}  # fields of other roles
# Fields that clients and gateways add to messages that they send again. They are not for the model.
NOTES = {"id", "annotations", "provider_specific_fields", "cache_control", "parsed"}


class Arguments(dict[str, Any]):
    """A call's arguments for a chat template. Some templates expect an object. DeepSeek's expect the JSON
    text from OpenAI's messages. This is a dict that becomes the JSON text in str() or if it is added to a
    string."""

    def __init__(self, value: Mapping[str, Any], text: str) -> None:
        super().__init__(value)
        self.text = text

    def __str__(self) -> str:
        return self.text

    def __add__(self, other: str) -> str:
        return self.text + other

    def __radd__(self, other: str) -> str:
        return other + self.text


def checked_messages(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate | None
) -> list[dict[str, Any]]:
    """Copies of the messages for the template. The role `developer` becomes `system`; a call's arguments
    become `Arguments`. Raises ApiError (400)."""
    return [_checked(message, f"messages[{i}]", template) for i, message in enumerate(messages)]


def _checked(message: Mapping[str, Any], where: str, template: ChatTemplate | None) -> dict[str, Any]:
    roles, words = (template.compared, template.words) if template is not None else ((), ())
    role = message.get("role")
    if not isinstance(role, str):
        raise bad_request(f"{where}.role must be a string", f"{where}.role")
    if role not in ROLES and role not in roles:
        rule = f"it must be {', '.join(ROLES[:-1])} or {ROLES[-1]}"
        raise bad_request(f"{where}.role is {shortened(role)}; {rule}", f"{where}.role")
    # openai's model_dump() also writes the fields that an answer did not have.
    kept = {name: value for name, value in message.items() if value not in (None, [], "", {}, False)}
    kept["role"] = "system" if role == "developer" else role
    if "tool_calls" in kept:
        if role != "assistant":
            raise bad_request(
                f"{where}: only an assistant's message can have tool_calls", f"{where}.tool_calls"
            )
        kept["tool_calls"] = _checked_calls(kept["tool_calls"], f"{where}.tool_calls")
    elif message.get("content") is None:
        raise bad_request(f"{where}.content is missing", f"{where}.content")
    for name in kept.keys() - FIELDS.get(role, OTHERS) - NOTES:
        if role in ROLES and name not in words:
            raise not_known(f"{where}.{name}")
    for name in ("name", "reasoning_content"):
        if not isinstance(kept.get(name, ""), str):
            raise bad_request(f"{where}.{name} must be a string", f"{where}.{name}")
    # Templates with reasoning decide which reasoning the model sees again. DeepSeek's templates omit it.
    if "reasoning_content" in kept and "think" not in words:
        raise bad_request(
            f"{where}.reasoning_content: the chat template does not support it; leave it out",
            f"{where}.reasoning_content",
        )
    if message.get("content") is not None:
        kept["content"] = message["content"]
        _check_parts(message["content"], f"{where}.content")
    return kept


def _check_parts(content: object, where: str) -> None:
    if isinstance(content, str):
        return
    if not isinstance(content, list):
        raise bad_request(f"{where} must be a string or a list of text parts", where)
    if not content:
        raise bad_request(f"{where} is an empty list; send at least one part, or a string", where)
    for i, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else json_type(part)
        if kind != "text":
            rule = "only 'text' parts are supported"
            raise bad_request(f"{where}[{i}] is of type {shortened(kind)}; {rule}", f"{where}[{i}].type")
        if not isinstance(part.get("text"), str):
            raise bad_request(f"{where}[{i}].text must be a string", f"{where}[{i}].text")
        for name in part.keys() - {"type", "text"} - NOTES:
            if part[name] not in (None, [], "", {}):
                raise not_known(f"{where}[{i}].{name}")


def _checked_calls(calls: object, where: str) -> list[dict[str, Any]]:
    if not isinstance(calls, list):
        raise bad_request(f"{where} must be a list", where)
    checked = []
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise bad_request(f"{where}[{i}] must have a function with a name", f"{where}[{i}].function")
        if call.get("type", "function") not in ("function", None):
            message = f"{where}[{i}].type is {shortened(call['type'])}; it must be 'function'"
            raise bad_request(message, f"{where}[{i}].type")
        arguments = _for_templates(function.get("arguments"), f"{where}[{i}].function.arguments")
        checked.append({**call, "type": "function", "function": {**function, "arguments": arguments}})
    return checked


def _for_templates(arguments: object, where: str) -> object:
    """A call's arguments for the template. Text that is not a JSON object stays unchanged: the model wrote
    it, and the conversation must be able to continue. Raises ApiError (400) for other types."""
    if isinstance(arguments, Mapping):
        return Arguments(arguments, json.dumps(arguments, ensure_ascii=False))
    if arguments is None:
        return ""
    if not isinstance(arguments, str):
        raise bad_request(f"{where} must be a string or an object, not {json_type(arguments)}", where)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return Arguments(value, arguments) if isinstance(value, dict) else arguments
