"""Reasoning and content, whatever pieces the text comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.server.parsers.parts import Part
from nextn.server.parsers.reasoning import PARSERS, ReasoningParser, begins_inside, may_open
from nextn.server_config import ServerConfig


def read(pieces: list[str], inside: bool, stream: bool = True) -> tuple[str, str, list[Part]]:
    parser = ReasoningParser(inside, stream)
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    assert all(part.text for part in parts)
    said = {kind: "".join(p.text for p in parts if p.kind == kind) for kind in ("reasoning", "content")}
    return said["reasoning"], said["content"], parts


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("<think>\na</think>\n\nb", False, "\na", "\n\nb"),
        ("<think>a</think>b", True, "a", "b"),
        ("a</think>b", True, "a", "b"),
        ("a</think>b", False, "", "a</think>b"),
        ("a", True, "a", ""),
        ("<think>a", False, "a", ""),
        ("<thi", False, "", "<thi"),
        ("<thi", True, "<thi", ""),
        ("a</think", True, "a</think", ""),
        (" <think>a</think>b", False, "", " <think>a</think>b"),
        ("</think>b<think>c</think>", True, "", "b<think>c</think>"),
        ("", True, "", ""),
    ],
)
def test_parts(text: str, inside: bool, reasoning: str, content: str) -> None:
    assert read([text], inside)[:2] == (reasoning, content)


texts = st.lists(
    st.sampled_from(["<think>", "</think>", "<", "think", ">", "</", "a", "b\n", " "]), max_size=8
)


@given(texts.map("".join), st.booleans(), st.booleans(), st.data())
def test_cuts_change_nothing_and_nothing_is_lost(
    text: str, inside: bool, stream: bool, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    reasoning, content, parts = read(pieces, inside, stream)
    assert (reasoning, content) == read([text], inside)[:2]
    kinds = [part.kind for part in parts]
    assert kinds == sorted(kinds, reverse=True)  # reasoning comes first
    if not stream:
        assert kinds.count("reasoning") <= 1
    opened = text.startswith("<think>")
    closed = (inside or opened) and "</think>" in text.removeprefix("<think>")
    assert opened * "<think>" + reasoning + closed * "</think>" + content == text


def test_what_cannot_be_a_mark_goes_out_at_once() -> None:
    parser = ReasoningParser(True)
    assert parser.push("a<b</") == [Part("reasoning", "a<b")]
    assert parser.push("think>c<") == [Part("content", "c<")]


@pytest.mark.parametrize(
    ("parser", "prompt", "inside"),
    [
        ("deepseek-r1", "…<｜Assistant｜>", True),
        ("deepseek-r1", "…<｜Assistant｜></think>", False),
        ("deepseek-r1", "…<｜Assistant｜><think>\n", True),
        ("deepseek-v3", "…<｜Assistant｜>", False),
        ("deepseek-v3", "…<｜Assistant｜><think>", True),
        ("deepseek-v3", "…<｜Assistant｜></think>", False),
        ("glm45", "…<|assistant|>", False),
        ("glm45", "…<|assistant|>\n<think></think>", False),  # GLM-4.5, enable_thinking: false
        ("glm45", "…<|assistant|><think>", True),  # GLM-4.7
        ("glm45", "…<|assistant|></think>", False),
        ("qwen3", "…<|im_start|>assistant\n", False),
        ("qwen3", "…<|im_start|>assistant\n<think>\n", True),
        ("qwen3", "…<|im_start|>assistant\n<think>\n\n</think>\n\n", False),  # enable_thinking: false
        ("qwen3-thinking", "…<|im_start|>assistant\n", True),
    ],
)
def test_where_an_answer_begins(parser: str, prompt: str, inside: bool) -> None:
    assert begins_inside(parser, prompt) is inside
    said = prompt.rstrip().endswith(("<think>", "</think>"))
    assert may_open(parser, prompt) is (not said and not parser.startswith("deepseek"))


@pytest.mark.parametrize(
    ("text", "inside", "reasoning", "content"),
    [
        ("\n<think>a</think>\nb", False, "a", "\nb"),
        ("\n\n<think>\na\n</think>\n\nb", False, "\na\n", "\n\nb"),
        ("\n<thi", False, "", "\n<thi"),
        ("\n", True, "\n", ""),
        ("\nb", False, "", "\nb"),
        (f"{' ' * 40}<think>a</think>", False, "", f"{' ' * 40}<think>a</think>"),
    ],
)
def test_blanks_before_the_mark(text: str, inside: bool, reasoning: str, content: str) -> None:
    """As GLM-4.5 writes it."""
    for pieces in ([text], list(text)):
        parser = ReasoningParser(inside, blanks=True)
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
        assert "".join(part.text for part in parts if part.kind == "reasoning") == reasoning
        assert "".join(part.text for part in parts if part.kind == "content") == content


def test_a_call_may_end_it() -> None:
    parser = ReasoningParser(True, calls=("<tool_call>",))
    assert parser.push("a<tool") == [Part("reasoning", "a")]
    assert parser.push("_call>b</think>") == [Part("content", "<tool_call>b</think>")]


def test_the_options_name_all_parsers() -> None:
    fields = ServerConfig.__dataclass_fields__["reasoning_parser"].metadata
    assert set(fields["choices"]) == set(PARSERS)
    assert set(fields["words"].values()) <= set(PARSERS)
    with pytest.raises(ValueError, match=r"--reasoning-parser is 'x': choose from deepseek-r1, .*qwen3"):
        ServerConfig(reasoning_parser="x").check()
