"""Bodies that are valid and too much: refused before anything is made of them."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.constraint import Constraint
from nextn.request import SamplingParams
from nextn.server.http.tokens import TokenizeRequest
from nextn.server.process.messages import NewRequest, add_of, decode_to_engine, encode, requests_of
from nextn.server.protocol.body import (
    MOST_CONTAINERS,
    MOST_VALUES,
    check_values,
    outside_strings,
    parse,
    shortened,
)
from nextn.server.protocol.errors import LONGEST, ApiError, bad_request
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CompletionRequest

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside),
)


@given(VALUES, st.booleans())
@settings(derandomize=True)
def test_strings_are_left_out(value: object, ascii: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii).encode(errors="replace")
    assert b"".join(outside_strings(body)) == re.sub(rb'"(?:[^"\\]|\\.)*"', b"", body, flags=re.DOTALL)


@pytest.mark.parametrize("body", [b'"', b'"\\', b'"a\\"', b'["a", "' + b"\\n" * 9000, b"x" * 9])
def test_strings_without_end(body: bytes) -> None:
    assert b'"' not in b"".join(outside_strings(body))


@pytest.mark.parametrize(
    ("one", "most"),
    [(b"1", MOST_VALUES), (b"[]", MOST_CONTAINERS), (b"{}", MOST_CONTAINERS), (b'"a":1', MOST_CONTAINERS)],
)
def test_too_many_values(one: bytes, most: int) -> None:
    begin, end = (b"{", b"}") if b":" in one else (b"[", b"]")
    check_values(begin + b",".join([one] * (most - 1)) + end)
    with pytest.raises(ApiError, match="more than 1048576 values, or 131072 lists, objects and keys"):
        check_values(begin + b",".join([one] * (most + 2)) + end)


def test_what_stands_in_a_string_is_no_value() -> None:
    check_values(b'{"prompt": "' + b"1,[{:" * (MOST_VALUES + 1) + b'\\n"}')


def body(**fields: object) -> bytes:
    return json.dumps(fields).encode()


TOOL = {"type": "function", "function": {"name": "f"}}
CHAT = {"messages": [{"role": "user", "content": "x"}]}


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (CompletionRequest, body(prompt="x", logit_bias=dict.fromkeys(range(1025), 1)), "1024 are allowed"),
        (CompletionRequest, body(prompt="x", rid="r" * 257), "rid: .* at most 256 characters"),
        (CompletionRequest, body(prompt="x", stop_token_ids=["a"] * 9), r"stop_token_ids\[0\]"),
        (CompletionRequest, body(prompt="x", speculative={"a": 1, "b": 1}), "speculative.a is not known"),
        (ChatRequest, body(**CHAT, tools=[TOOL] * 1025), "there are 1025 tools; 1024 are allowed"),
        (ChatRequest, body(messages=[1] * 9), r"messages\[0\]: .*dictionary \(got 1\)"),
        (TokenizeRequest, body(messages=[1] * 9), r"messages\[0\]"),
    ],
)  # fmt: skip
def test_fields(kind: type, given: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message):
        parse(given, kind)


def test_ids_of_prompts() -> None:
    for rid in ("r" * 257, ["r" * 257, "s"], "r" * 255):
        request = parse(body(text=["a", "b"], rid=rid), GenerateRequest)
        with pytest.raises(ApiError, match="rid has more than 256 characters"):
            request.prompt_params(2)


@given(VALUES)
@settings(derandomize=True)
def test_shortened_is_the_beginning_of_the_repr(value: object) -> None:
    whole = repr(value)
    assert shortened(value) == (whole if len(whole) <= 60 else whole[:59] + "…")


def test_a_message_is_not_longer_than_anyone_reads() -> None:
    error = bad_request("x" * 10**6, "y" * 10**6)
    assert len(error.body) < 2.2 * LONGEST
    assert str(error).endswith("…")


def test_choices_of_a_prompt_send_it_once() -> None:
    """And get it back, each a list of its own."""
    prompt, other = list(range(1000)), [7]
    one, two = Constraint("regex", "x" * 1000), Constraint("regex", "y")
    pairs = [
        (prompt, one),
        (prompt, one),
        (other, one),
        (other, two),
        (other, None),
        (other, None),
        ([7], two),
    ]
    made = [
        NewRequest(f"r{i}", tokens, SamplingParams(stream=i, constraint=constraint), i)
        for i, (tokens, constraint) in enumerate(pairs)
    ]
    sent = encode(add_of(made))
    assert len(sent) < 7000
    come = requests_of(decode_to_engine(sent))  # type: ignore[arg-type]
    assert come == made
    assert len({id(new.tokens) for new in come}) == len(come)
