"""Grammars of answers with calls, in the model's own format: `call_grammar` for tool_choice "required" or a
named function, where the answer is calls, and `strict_grammar` for "auto", where it may have some.

The answer is read by the same parser as without a grammar. The grammars spell marks as text, so a tokenizer
must have them as tokens that are not special, as DeepSeek's has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from nextn.constraint import Constraint
from nextn.grammar.base import BOUNDED
from nextn.server.parsers.tools import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, FORMATS

# Free text up to </think>, in one terminal, as lexers do not go back; "</" is in it at its end only.
THOUGHT = r"/([^<]|<+[^<\/])*<+\/think>/"


def call_grammar(
    parser: str,
    tools: Sequence[Mapping[str, Any]],
    parallel: bool = True,
    thought: bool = False,
    any_whitespace: bool = False,
) -> Constraint:
    """Of one call to one of the tools, or with `parallel` of several. `thought`: after reasoning.
    `any_whitespace`: in the arguments."""
    form = FORMATS[parser]
    functions = [tool["function"] for tool in tools]
    names = " | ".join(f"f{i}" for i in range(len(functions)))
    more = f" ({quoted(form.between)} call)*" if form.between else " call*"
    end = (form.fences[0] if form.fences else "") + CALL_END
    lines = [
        f"start: {'THOUGHT ' * thought}{quoted(CALLS_BEGIN)} call{more * parallel} {quoted(CALLS_END)}",
        f"call: {quoted(CALL_BEGIN + form.before_name)} ({names}) {quoted(end)}",
    ]
    if thought:
        lines.append(f"THOUGHT: {THOUGHT}")
    for i, function in enumerate(functions):
        lines.append(f"f{i}: {quoted(function['name'] + form.after_name)} a{i}")
        schema = {**schema_of(function), **({} if any_whitespace else BOUNDED)}
        lines.append(f"a{i}: %json {json.dumps(schema)}")
    return Constraint("lark", "\n".join(lines) + "\n")


def strict_grammar(parser: str, tools: Sequence[Mapping[str, Any]]) -> Constraint | None:
    """Free text, in which every call is to one of the tools: with the arguments that a `strict` function asks
    for, with any JSON for others. None where no function is strict."""
    functions = [tool["function"] for tool in tools]
    if not any(function.get("strict") for function in functions):
        return None
    form = FORMATS[parser]
    structures = [
        {
            "begin": CALL_BEGIN + form.before_name + function["name"] + form.after_name,
            "schema": schema_of(function) if function.get("strict") else {},
            "end": (form.fences[0] if form.fences else "") + CALL_END,
        }
        for function in functions
    ]
    return Constraint("structural_tag", json.dumps({"structures": structures, "triggers": [CALL_BEGIN]}))


def schema_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or {"type": "object"}


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
