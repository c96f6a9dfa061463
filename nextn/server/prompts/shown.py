"""Checks that the chat template shows all texts of the messages to the model.

Templates silently skip what they do not know, for example a role, the text before a tool call, or a name. To
detect this, the messages are rendered a second time with a mark after each text. Each mark must then be in
the prompt. The beginning of a text may be missing: DeepSeek's templates drop an earlier answer's reasoning,
up to `</think>`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from nextn.server.prompts.messages import Arguments
from nextn.server.protocol.errors import bad_request
from nextn.tokenizer.chat import plain_content

MARK = f"nextn{secrets.token_hex(8)}n"  # in no message; letters and digits survive any filter
MARKS = re.compile(rf"{MARK}(\d+)x")


class _Text(NamedTuple):
    field: str
    role: str


def check_shown(
    messages: Sequence[Mapping[str, Any]], render: Callable[[Sequence[Mapping[str, Any]]], str]
) -> None:
    """Raises ApiError (400) that names a field that the chat template does not show. messages: from
    `checked_messages`. render: applies the template."""
    texts: list[_Text] = []
    marked = [_marked(message, f"messages[{i}]", texts) for i, message in enumerate(messages)]
    try:
        prompt = render(marked)
    except ValueError:  # the template accepted the texts without marks, so it checks texts itself
        return
    shown = {int(found) for found in MARKS.findall(prompt)}
    for number, (field, role) in enumerate(texts):
        if number not in shown:
            raise bad_request(
                f"{field}: the chat template does not show it to the model in a message of role {role!r}",
                field,
            )


def _marked(message: Mapping[str, Any], where: str, texts: list[_Text]) -> dict[str, Any]:
    role = message["role"]

    def mark(field: str) -> str:
        texts.append(_Text(f"{where}.{field}", role))
        return f"{MARK}{len(texts) - 1}x"

    marked = dict(message)
    if content := plain_content(message.get("content"), f"{where}.content"):
        marked["content"] = content + mark("content")
    # A tool message's name may be skipped: tool_call_id already says which call the result is for.
    if role != "tool" and "name" in message:
        marked["name"] = message["name"] + mark("name")
    if calls := message.get("tool_calls"):
        marked["tool_calls"] = [
            _marked_call(call, mark, f"tool_calls[{i}].function") for i, call in enumerate(calls)
        ]
    return marked


def _marked_call(call: Mapping[str, Any], mark: Callable[[str], str], where: str) -> dict[str, Any]:
    function = dict(call["function"])
    function["name"] += mark(f"{where}.name")
    arguments = function["arguments"]
    if isinstance(arguments, Arguments):
        if arguments:
            added = mark(f"{where}.arguments")
            function["arguments"] = Arguments({**arguments, added: added}, arguments.text + added)
    elif arguments:
        function["arguments"] = arguments + mark(f"{where}.arguments")
    return {**call, "function": function}
