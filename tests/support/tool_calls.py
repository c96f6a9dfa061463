"""Tool calls as models write them in each format, and as the parsers read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st

from nextn.server.parsers.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import parser

Call = tuple[str, Mapping[str, Any]]


def written(name: str, call: Call) -> str:
    """One call, without the text around several calls."""
    function, arguments = call
    given = json.dumps(arguments, ensure_ascii=False)
    if name == "deepseekv31":
        return f"{CALL_BEGIN}{function}{SEPARATOR}{given}{CALL_END}"
    if name == "deepseekv3":
        return f"{CALL_BEGIN}function{SEPARATOR}{function}\n```json\n{given}\n```{CALL_END}"
    if name == "hermes":
        return f'<tool_call>\n{{"name": "{function}", "arguments": {given}}}\n</tool_call>'
    texts = {
        key: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for key, value in arguments.items()
    }
    if name == "qwen3_coder":
        body = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in texts.items())
        return f"<tool_call>\n<function={function}>\n{body}</function>\n</tool_call>"
    line = "\n" if name == "glm45" else ""
    body = "".join(f"<arg_key>{k}</arg_key>{line}<arg_value>{v}</arg_value>{line}" for k, v in texts.items())
    return f"<tool_call>{function}{line}{body}</tool_call>"


def answer(name: str, calls: Sequence[Call]) -> str:
    """All calls of an answer, with the text around them."""
    between = "" if name in ("deepseekv31", "glm47") else "\n"
    whole = between.join(written(name, call) for call in calls)
    return f"{CALLS_BEGIN}{whole}{CALLS_END}" if name.startswith("deepseek") else whole


def joined(parts: Sequence[Part]) -> list[Part]:
    """Joins neighbouring parts of the same kind."""
    whole: list[Part] = []
    for part in parts:
        assert part.text
        if whole and part.kind != "call" and (whole[-1].kind, whole[-1].call) == (part.kind, part.call):
            whole[-1] = part._replace(text=whole[-1].text + part.text)
        else:
            whole.append(part)
    return whole


def read(pieces: Sequence[str], name: str, functions: Mapping[str, Any] | None = None) -> list[Part]:
    reader = parser(name, functions)
    return joined([part for piece in pieces for part in reader.push(piece)] + reader.finish())


def called(parts: Sequence[Part]) -> list[Call]:
    """The calls among the parts."""
    calls: list[tuple[str, str]] = []
    for part in parts:
        if part.kind == "call":
            calls.append((part.text, ""))
        elif part.kind == "arguments":
            function, arguments = calls[part.call]
            calls[part.call] = function, arguments + part.text
    return [(function, json.loads(arguments)) for function, arguments in calls]


def said(parts: Sequence[Part], kind: str) -> str:
    return "".join(part.text for part in parts if part.kind == kind)


def pieces_of(text: str, data: st.DataObject) -> list[str]:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
