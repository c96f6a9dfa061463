"""Grammars of calls: what the parser reads is what they allow, whichever library holds them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jsonschema
import pytest
from support.grammars import compiled
from support.tool_calls import Call, called, joined, read
from support.tool_calls import answer as written_answer

from nextn.config import model_folder
from nextn.constraint import Constraint
from nextn.grammar.backends import make_backend
from nextn.grammar.base import Backend, Vocabulary
from nextn.server.parsers.answer import AnswerFormat, AnswerParser
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import FORMATS
from nextn.server.prompts.tool_grammar import Thought, call_grammar, strict_grammar
from nextn.tokenizer.tokenizer import Tokenizer

FOLDER = model_folder("nextn-tiny")
WHERE = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
TOOLS = [
    {"function": {"name": "look", "parameters": {**WHERE, "additionalProperties": False}}},
    {"function": {"name": "go"}},
]
LOOK, GO = ("look", {"where": "a\n<b"}), ("go", {})
FUNCTIONS = {tool["function"]["name"]: tool["function"].get("parameters") for tool in TOOLS}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FOLDER)


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def backend(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Backend:
    pytest.importorskip(request.param)
    return make_backend(request.param, Vocabulary(FOLDER, tokenizer.vocab_size, [1]))


Fits = Callable[[str, Constraint], bool]


@pytest.fixture(scope="module")
def fits(backend: Backend, tokenizer: Tokenizer) -> Fits:
    def fits(text: str, constraint: Constraint) -> bool:
        grammar = compiled(backend, constraint).begin()
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return grammar.advance(tokens) == len(tokens) and grammar.accepting

    return fits


def answer(parser: str, *calls: Call) -> str:
    return written_answer(parser, calls)


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_grammars_of_calls(fits: Fits, parser: str) -> None:
    def may(text: str, parallel: bool = True, thought: Thought | None = None, tools: Any = TOOLS) -> bool:
        return fits(text, call_grammar(parser, tools, parallel, thought))

    one, two = answer(parser, LOOK), answer(parser, LOOK, GO)
    assert may(one)
    assert may(two)
    assert not may(two, parallel=False)
    assert may(one, parallel=False)
    assert not may(answer(parser, GO), tools=TOOLS[:1])
    none = {"function": {"name": "go", "parameters": {"type": "object", "additionalProperties": False}}}
    assert may(answer(parser, GO), tools=[none])
    assert not may(answer(parser, ("go", {"a": "b"})), tools=[none])
    assert not may(answer(parser, ("look", {})))
    assert not may(answer(parser, ("run", {})))
    assert not may("I look." + one)
    assert not may("")
    for thought in ("", "1 < 2, <<b>\nso", "a <", "</b> </thin"):
        closed = f"{thought}</think>{one}"
        assert may(closed, thought="closed")
        assert may(f"<think>{closed}", thought="whole")
        assert not may(closed)
        assert not may(closed, thought="whole")
    assert may(one, thought="whole")
    assert not may("no end", thought="closed")
    assert not may(one, thought="closed")
    blanks = "" if parser.startswith("deepseek") else "\n\n"
    for answer_format, said in (
        (AnswerFormat(parser, True, functions=FUNCTIONS), "so"),
        (AnswerFormat(parser, False, opens=True, functions=FUNCTIONS), "\n<think>so"),
    ):
        thought = "closed" if answer_format.reasoning else "whole"
        text = f"{said}</think>{blanks}{two}"
        assert may(text, thought=thought)  # type: ignore[arg-type]
        read = AnswerParser(answer_format)
        parts = joined(read.push(text) + read.finish())
        assert parts[0] == Part("reasoning", "so")
        assert called(parts) == [LOOK, GO]


STRICT = [{"function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_strict_functions(fits: Fits, parser: str) -> None:
    """The text is free, reasoning and all; calls have the strict one's arguments, or the other's any JSON."""
    constraint = strict_grammar(parser, STRICT)
    assert constraint is not None

    def may(text: str) -> bool:
        return fits(text, constraint)

    assert may("")
    assert may("a < b << c <｜tool <tool_ and </think> so\n")
    assert may("<think>Hm.</think>I look." + answer(parser, LOOK, GO, LOOK) + "\n")
    assert may(answer(parser, ("go", {"any": [1, None]})))
    assert not may(answer(parser, ("look", {})))
    if FORMATS[parser].spelling.pair is None:  # where an argument is text, 5 is one
        assert not may("So: " + answer(parser, LOOK, ("look", {"where": 5})))
        assert not may(answer(parser, GO).replace("{}", "none of JSON"))
    assert not may("So: " + answer(parser, LOOK, ("look", {"here": "a"})))
    assert not may(answer(parser, ("run", {})))
    assert not may(answer(parser, LOOK)[:-30])


TYPED = {
    "type": "object",
    "$defs": {
        "Color": {"enum": ["red", "dark blue"]}, "Pair": {"type": "array", "items": {"type": "integer"}},
    },
    "properties": {
        "text": {"type": "string"},
        "count": {"type": "integer"},
        "color": {"$ref": "#/$defs/Color"},
        "pair": {"$ref": "#/$defs/Pair"},
        "maybe": {"type": ["string", "null"]},
        "level": {"enum": ["high", 3]},
    },
    "required": ["text", "count"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_arguments_follow_the_schema(fits: Fits, parser: str) -> None:
    """Types, required ones, choices; what the grammar allows, the parser reads as valid by the schema."""
    constraint = call_grammar(parser, [{"function": {"name": "f", "parameters": TYPED}}], parallel=False)

    def may(**arguments: Any) -> bool:
        text = answer(parser, ("f", arguments))
        allowed = fits(text, constraint)
        if allowed:
            assert called(read([text], parser, {"f": TYPED})) == [("f", arguments)]
            jsonschema.validate(arguments, TYPED)
        return allowed

    full = {
        "text": "<b>1</b>\n</arg_", "count": -5, "color": "dark blue", "pair": [1, 2], "maybe": "a",
        "level": 3,
    }  # fmt: skip
    for count in range(2, 7):
        assert may(**dict(list(full.items())[:count]))
    assert may(text="", count=0, level="high")
    assert not may(text="a")
    assert not may(text="a", count="five")
    assert not may(text="a", count=1.5)
    assert not may(text="a", count=1, color="green")
    assert not may(text="a", count=1, pair=["x"])
    assert not may(text="a", count=1, other="x")


@pytest.mark.parametrize(
    "parameters",
    [{"properties": ["a"]}, {"properties": {"a": {}}, "required": 5}, {"properties": 1, "required": "a"}],
)
@pytest.mark.parametrize("parser", ["glm45", "qwen3_coder"])
def test_what_is_no_schema_asks_for_nothing(parser: str, parameters: dict[str, Any]) -> None:
    tools = [{"function": {"name": "f", "parameters": parameters}}]
    assert "call" in call_grammar(parser, tools).text


def test_without_strict_functions_there_is_no_grammar() -> None:
    assert strict_grammar("deepseekv31", TOOLS) is None
    assert strict_grammar("deepseekv31", [{"function": {"name": "f", "strict": False}}]) is None
