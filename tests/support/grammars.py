"""Constraints compiled by one backend, and constraints that would do harm."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from nextn.constraint import CompiledGrammar, Constraint
from nextn.grammar.base import Backend


def compiled(backend: Backend, constraint: Constraint) -> CompiledGrammar:
    return backend.compile(constraint.kind, backend.prepare(constraint))


def chain(count: int, *, ebnf: bool) -> str:
    """A grammar in which rule 0 is rule 1, rule 1 is rule 2, and so on."""
    begin, sign = ("root ::= r0", "::=") if ebnf else ("start: r0", ":")
    rules = [f"r{i} {sign} r{i + 1}" for i in range(count)]
    return "\n".join([begin, *rules, f'r{count} {sign} "a"'])


def linked(count: int, part: Callable[[dict[str, Any]], dict[str, Any]]) -> str:
    """A schema of `count` parts, each with a link to the next."""
    parts = {f"d{i}": part({"$ref": f"#/$defs/d{i + 1}"}) for i in range(count)}
    return json.dumps({"$defs": parts | {f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"})


DEEP = "it is nested or linked too deeply"
FOR_EVER = chain(50_000, ebnf=True)  # it would take more than a minute
HOSTILE = {  # kind, text, expected message
    "chain of Lark's rules": ("lark", chain(3000, ebnf=False), DEEP),
    "chain of GBNF's rules": ("ebnf", chain(5000, ebnf=True), DEEP),
    "links": ("json_schema", linked(3000, lambda link: link), DEEP),
    "objects": (
        "json_schema",
        linked(1500, lambda link: {"type": "object", "properties": {"a": link}}),
        DEEP,
    ),
    "brackets": ("regex", "(" * 5000 + "a" + ")" * 5000, ""),
    "repetition": (
        "regex",
        "((x{100}){100}){100}",
        "(it takes more than|llguidance reached a limit|computing the allowed tokens)",
    ),
    "length": ("regex", "a" * 1_000_000, "it takes more than"),
}
