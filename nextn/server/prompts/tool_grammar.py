"""Grammars of answers with tool calls, in the model's own format. `call_grammar` is for tool_choice
"required" or a named function: the answer consists of calls. `strict_grammar` is for "auto": the answer may
have calls.

The same parser reads the answer with and without a grammar. The grammars spell marks as text. A tokenizer
should therefore have marks as tokens that are not special, as those of DeepSeek, GLM and Qwen do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from nextn.constraint import Constraint
from nextn.grammar.base import BOUNDED
from nextn.server.parsers.schemas import kind_of, resolve_ref
from nextn.server.parsers.spelling import Pair, Spelling
from nextn.server.parsers.tools import FORMATS
from nextn.server.prompts.up_to import up_to, without

# The text before the calls. closed: reasoning up to </think>. whole: optional reasoning that <think> begins.
Thought = Literal["closed", "whole"]
ANY_KEY = '/[^<>\\s"]+/'


def call_grammar(
    parser: str,
    tools: Sequence[Mapping[str, Any]],
    parallel: bool = True,
    thought: Thought | None = None,
    any_whitespace: bool = False,
) -> Constraint:
    """The grammar of one call to one of the tools, or with `parallel` of one or more calls. any_whitespace:
    the arguments' JSON may have any whitespace."""
    form = FORMATS[parser].spelling
    more = f" ({quoted(form.between)} call)*" if form.between else " call*"
    opening, closing = (f"{quoted(mark)} " if mark else "" for mark in form.outer)
    before = {"closed": "THOUGHT ", "whole": "THOUGHT? ", None: ""}[thought]
    lines = [f"start: {before}{opening}call{more * parallel} {closing}".rstrip()]
    if thought is not None:
        opened = "" if thought == "closed" else r"\n{0,2}<think>"
        blanks = "" if form.outer[0] else r"\n{0,2}"
        lines.append(f"THOUGHT: /{opened}{up_to('</think>')}{blanks}/")
    functions = [tool["function"] for tool in tools]
    lines += calls(form, functions, [schema_of(function) for function in functions], any_whitespace)
    return Constraint("lark", "\n".join(lines) + "\n")


def strict_grammar(parser: str, tools: Sequence[Mapping[str, Any]]) -> Constraint | None:
    """The grammar of free text in which each call is to one of the tools. A `strict` function's arguments
    follow its schema; other functions get any JSON. None if no function is strict."""
    functions = [tool["function"] for tool in tools]
    if not any(function.get("strict") for function in functions):
        return None
    form = FORMATS[parser].spelling
    schemas = [schema_of(function) if function.get("strict") else {} for function in functions]
    if form.pair is not None:
        begun = form._replace(before_name=form.before_name.removeprefix(form.trigger))
        lines = [
            "start: (TRIGGER call)* REST",
            f"TRIGGER: /{up_to(form.trigger)}/",
            f"REST: /{without(form.trigger)}/",
            *calls(begun, functions, schemas, any_whitespace=False),
        ]
        return Constraint("lark", "\n".join(lines) + "\n")
    structures = [
        {
            "begin": form.before_name + spelled(function["name"], form) + form.after_name,
            "schema": schema,
            "end": form.end,
        }
        for function, schema in zip(functions, schemas, strict=True)
    ]
    return Constraint("structural_tag", json.dumps({"structures": structures, "triggers": [form.trigger]}))


def calls(
    form: Spelling,
    functions: Sequence[Mapping[str, Any]],
    schemas: Sequence[Mapping[str, Any]],
    any_whitespace: bool,
) -> Iterator[str]:
    """Yields the rules of `call`, in which arguments follow the schemas."""
    names = " | ".join(f"f{i}" for i in range(len(functions)))
    before = f"{quoted(form.before_name)} " if form.before_name else ""
    yield f"call: {before}({names}) {quoted(form.end)}"
    for i, (function, schema) in enumerate(zip(functions, schemas, strict=True)):
        yield f"f{i}: {quoted(spelled(function['name'], form) + form.after_name)} a{i}"
        if form.pair is None:
            yield f"a{i}: {of_json(schema, any_whitespace)}"
        else:
            yield from pairs(f"a{i}", form.pair, schema, any_whitespace)
    if form.pair is not None:
        rest = form.pair.end.partition(form.pair.close)[2]
        yield f"text: TEXT {quoted(rest) if rest else ''}"
        yield f"TEXT: /{up_to(form.pair.close)}/"


def pairs(rule: str, pair: Pair, schema: Mapping[str, Any], any_whitespace: bool) -> Iterator[str]:
    """Yields the rules of arguments that are written as keys and values, in the schema's order. For a text
    value, only `enum` and `const` restrict it. Further arguments are possible if the schema allows them, or
    names none."""
    whole = resolve_ref(schema, schema)
    properties = whole.get("properties") if isinstance(whole, Mapping) else None
    further = whole.get("additionalProperties", not properties) if isinstance(whole, Mapping) else True
    needed = whole.get("required") if isinstance(whole, Mapping) else None
    properties = properties if isinstance(properties, Mapping) else {}
    needed = needed if isinstance(needed, list) else []
    words, lines = list[str](), list[str]()
    for j, (name, argument) in enumerate(properties.items()):
        words.append(f"{rule}x{j}" + "?" * (name not in needed))
        key = quoted(pair.before_key + name + pair.before_value)
        lines.append(f"{rule}x{j}: {key} {value(pair, schema, name, argument, any_whitespace)}")
    if further is not False:
        words.append(f"{rule}x*")
        lines.append(f"{rule}x: {quoted(pair.before_key)} {ANY_KEY} {quoted(pair.before_value)} text")
    yield f"{rule}: {' '.join(words) or quoted('')}"
    yield from lines


def value(pair: Pair, schema: Mapping[str, Any], name: str, argument: object, any_whitespace: bool) -> str:
    """The rule of an argument's value and the mark that ends it."""
    given = resolve_ref(argument, schema)
    choices = [given["const"]] if isinstance(given, Mapping) and "const" in given else None
    if choices is None and isinstance(given, Mapping) and isinstance(given.get("enum"), list):
        choices = given["enum"]
    kind = kind_of(schema, name, "free")
    end = quoted(pair.end)
    if choices and kind != "json":
        texts = [each if isinstance(each, str) else json.dumps(each) for each in choices]
        return f"({' | '.join(map(quoted, texts))}) {end}"
    if kind != "json" or not isinstance(argument, Mapping):
        return "text"
    linked = {word: schema[word] for word in ("$defs", "definitions") if word in schema}
    return f"{of_json({**linked, **argument}, any_whitespace)} {end}"


def of_json(schema: Mapping[str, Any], any_whitespace: bool) -> str:
    return f"%json {json.dumps({**schema, **({} if any_whitespace else BOUNDED)})}"


def schema_of(function: Mapping[str, Any]) -> Mapping[str, Any]:
    return function.get("parameters") or {"type": "object"}


def spelled(name: str, form: Spelling) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1] if form.name_in_json else name


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
