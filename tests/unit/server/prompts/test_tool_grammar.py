"""Grammars of calls: what the parser reads is what they allow, whichever library holds them."""

from __future__ import annotations

import pytest
from support.grammars import compiled

from nextn.config import model_folder
from nextn.grammar.backends import make_backend
from nextn.grammar.base import Backend, Vocabulary
from nextn.server.parsers.answer import AnswerParser, Reading
from nextn.server.parsers.parts import Part
from nextn.server.parsers.tools import FORMATS
from nextn.server.prompts.tool_grammar import call_grammar, strict_grammar
from nextn.tokenizer.tokenizer import Tokenizer

FOLDER = model_folder("nextn-tiny")
WHERE = {"type": "object", "properties": {"where": {"type": "string"}}, "required": ["where"]}
TOOLS = [
    {"function": {"name": "look", "parameters": {**WHERE, "additionalProperties": False}}},
    {"function": {"name": "go"}},
]
CALLS = {
    "deepseekv3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>%s\n```json\n%s\n```<｜tool▁call▁end｜>",
    "deepseekv31": "<｜tool▁call▁begin｜>%s<｜tool▁sep｜>%s<｜tool▁call▁end｜>",
}
LOOK, GO = ("look", '{"where": "a\\n<b"}'), ("go", "{}")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_folder(FOLDER)


@pytest.fixture(scope="module", params=["llguidance", "xgrammar"])
def backend(request: pytest.FixtureRequest, tokenizer: Tokenizer) -> Backend:
    pytest.importorskip(request.param)
    return make_backend(request.param, Vocabulary(FOLDER, tokenizer.vocab_size, [1]))


def answer(parser: str, *calls: tuple[str, str]) -> str:
    between = FORMATS[parser].between
    return f"<｜tool▁calls▁begin｜>{between.join(CALLS[parser] % call for call in calls)}<｜tool▁calls▁end｜>"


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_grammars_of_calls(backend: Backend, tokenizer: Tokenizer, parser: str) -> None:
    def fits(text: str, parallel: bool = True, thought: bool = False, tools: object = TOOLS) -> bool:
        grammar = compiled(backend, call_grammar(parser, tools, parallel, thought)).begin()  # type: ignore[arg-type]
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return grammar.advance(tokens) == len(tokens) and grammar.accepting

    one, two = answer(parser, LOOK), answer(parser, LOOK, GO)
    assert fits(one)
    assert fits(two)
    assert not fits(two, parallel=False)
    assert fits(one, parallel=False)
    assert not fits(answer(parser, GO), tools=TOOLS[:1])
    assert not fits(answer(parser, ("look", "{}")))
    assert not fits(answer(parser, ("run", "{}")))
    assert not fits("I look." + one)
    assert not fits("")
    for thought in ("", "1 < 2, <<b>\nso", "a <"):
        assert fits(f"{thought}</think>{one}", thought=True)
        assert not fits(f"{thought}</think>{one}")
    assert not fits("no end", thought=True)
    assert not fits(one, thought=True)
    read = AnswerParser(Reading(parser, reasoning=True))
    parts = read.push(f"so</think>{two}") + read.finish()
    assert [part for part in parts if part.kind == "call"] == [Part("call", "look", 0), Part("call", "go", 1)]
    assert "".join(part.text for part in parts if part.kind == "arguments") == LOOK[1] + GO[1]


STRICT = [{"function": {**TOOLS[0]["function"], "strict": True}}, TOOLS[1]]


@pytest.mark.parametrize("parser", sorted(FORMATS))
def test_strict_functions(backend: Backend, tokenizer: Tokenizer, parser: str) -> None:
    """The text is free, reasoning and all; calls have the strict one's arguments, or the other's any JSON."""
    constraint = strict_grammar(parser, STRICT)
    assert constraint is not None
    made = compiled(backend, constraint)

    def fits(text: str) -> bool:
        grammar = made.begin()
        tokens = tokenizer.encode(text, add_special_tokens=False)
        return grammar.advance(tokens) == len(tokens) and grammar.accepting

    assert fits("")
    assert fits("a < b << c <｜tool and </think> so\n")
    assert fits("<think>Hm.</think>I look." + answer(parser, LOOK, GO, LOOK) + "\n")
    assert fits(answer(parser, ("go", '{"any": [1, null]}')))
    assert not fits(answer(parser, ("look", "{}")))
    assert not fits("So: " + answer(parser, LOOK, ("look", '{"where": 5}')))
    assert not fits(answer(parser, ("go", "none of JSON")))
    assert not fits(answer(parser, ("run", "{}")))
    assert not fits(answer(parser, LOOK)[:-30])


def test_without_strict_functions_there_is_no_grammar() -> None:
    assert strict_grammar("deepseekv31", TOOLS) is None
    assert strict_grammar("deepseekv31", [{"function": {"name": "f", "strict": False}}]) is None
