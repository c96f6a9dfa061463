"""What of an answer's tokens is its text: special tokens, what ended it. Through every endpoint."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_socket import post

from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "héllo €uro, stop here"
BOS, EOS = 0, 1
CHAT = [{"role": "user", "content": "hi"}]


def texts(
    tokenizer: Tokenizer,
    api: str,
    tokens: list[int],
    cuts: list[int],
    matched: int | None = None,
    n: int = 1,
    **fields: Any,
) -> tuple[list[str], list[list[int]]]:
    """Of each choice: its text, and its log-probabilities as token ids."""
    if api == "generate":
        streamed = {name: fields.pop(name) for name in list(fields) if name in ("stream", "return_logprob")}
        got = post(tokenizer, "/generate", tokens, cuts, matched, input_ids=[0, 5], **streamed,
                   sampling_params={"n": n, **fields})  # fmt: skip
        if streamed.get("stream"):
            got = list({event.get("index", 0): event for event in got}.values())
        got = got if isinstance(got, list) else [got]
        reported = [each["meta_info"].get("output_token_logprobs", []) for each in got]
        return [each["text"] for each in got], [[token for _, token, _ in each] for each in reported]
    path = "/v1/chat/completions" if api == "chat" else "/v1/completions"
    body: dict[str, Any] = {"messages": CHAT} if api == "chat" else {"prompt": [0, 5]}
    if fields.pop("return_logprob", False):
        body["logprobs"] = api == "chat" or 0
    got = post(tokenizer, path, tokens, cuts, matched, n=n, **body, **fields)
    said, names = [""] * n, [list[str]() for _ in range(n)]
    for event in got if isinstance(got, list) else [got]:
        for choice in event["choices"]:
            text = choice.get("text")
            if api == "chat":
                text = choice.get("delta", choice.get("message")).get("content")
            said[choice["index"]] += text or ""
            logprobs = choice["logprobs"] or {"tokens": [], "content": []}
            found = [entry["token"] for entry in logprobs["content"]] if api == "chat" else logprobs["tokens"]
            names[choice["index"]] += found
    ids = {tokenizer.token_names[i]: i for i in range(tokenizer.vocab_size)}
    return said, [[ids[name] for name in each] for each in names]


apis = st.sampled_from(["completions", "chat", "generate"])
cuts = st.lists(st.integers(1, 5), max_size=12)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(api=apis, cuts=cuts, stream=st.booleans(), n=st.integers(1, 2), name=st.booleans())
def test_a_stop_string_stays(
    tokenizer: Tokenizer, api: str, cuts: list[int], stream: bool, n: int, name: bool
) -> None:
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    keep = "no_stop_trim" if name or api == "generate" else "include_stop_str_in_output"
    said, reported = texts(
        tokenizer, api, tokens, cuts, n=n, stream=stream, stop=["stop", "nowhere"], return_logprob=True,
        **{keep: True},
    )  # fmt: skip
    assert said == ["héllo €uro, stop"] * n
    assert reported == [tokens[: len(said[0].encode())]] * n


@settings(max_examples=40, deadline=None, derandomize=True)
@given(api=apis, cuts=cuts, stream=st.booleans(), n=st.integers(1, 2), keep=st.booleans(), skip=st.booleans())
def test_special_tokens(
    tokenizer: Tokenizer, api: str, cuts: list[int], stream: bool, n: int, keep: bool, skip: bool
) -> None:
    """They are text where they are not skipped; the one that ended it only where it is to stay."""
    tokens = tokenizer.encode(TEXT[:5] + "<bos>" + TEXT[5:], add_special_tokens=False)
    assert BOS in tokens
    said, reported = texts(
        tokenizer, api, tokens, cuts, EOS, n, stream=stream, no_stop_trim=keep, skip_special_tokens=skip,
        spaces_between_special_tokens=skip, return_logprob=True,
    )  # fmt: skip
    shown = "héllo<bos> €uro, stop here" + "<eos>" * keep
    assert said == [TEXT if skip else shown] * n
    ended = [EOS] if keep and not skip and api != "generate" else []
    assert reported == [tokens + ended] * n


@pytest.mark.parametrize("skip", [False, True])
def test_special_tokens_of_an_echo(tokenizer: Tokenizer, skip: bool) -> None:
    """Offsets count what is there of them."""
    tokens = tokenizer.encode("b", add_special_tokens=False)
    prompt = tokenizer.encode("a<eos>")
    answer = post(
        tokenizer, "/v1/completions", tokens, prompt=prompt, echo=True, logprobs=0, skip_special_tokens=skip
    )
    (choice,) = answer["choices"]
    assert choice["text"] == ("ab" if skip else "<bos>a<eos>b")
    assert choice["logprobs"]["text_offset"] == ([0, 0, 1, 1] if skip else [0, 5, 6, 11])


def test_an_end_that_is_no_special_token(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    for keep, text in ((True, "ab"), (False, "a")):
        assert texts(tokenizer, "completions", tokens[:1], [], tokens[1], no_stop_trim=keep)[0] == [text]


@settings(max_examples=30, deadline=None, derandomize=True)
@given(api=apis, cuts=cuts, stream=st.booleans(), n=st.integers(1, 2))
def test_a_stop_regex_ends_the_text(
    tokenizer: Tokenizer, api: str, cuts: list[int], stream: bool, n: int
) -> None:
    """Where it is complete, within a run of drafts too; what it matched stays."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    said, reported = texts(
        tokenizer, api, tokens, cuts, n=n, stream=stream, stop_regex=["[xyz]", "u.o, s"], stop="stop",
        return_logprob=True,
    )  # fmt: skip
    assert said == ["héllo €uro, s"] * n
    assert reported == [tokens[: len(said[0].encode())]] * n


def test_a_stop_regex_is_named(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    fields = {"prompt": "x", "stop_regex": "a|b.", "rid": "r"}
    (choice,) = post(tokenizer, "/v1/completions", tokens, **fields)["choices"]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("a", "stop", "a|b.")
    body = {"text": ["x", "y"], "sampling_params": [{"stop_regex": ["b"]}, {}]}
    first, second = post(tokenizer, "/generate", tokens, [1, 1], **body)
    assert first["meta_info"]["finish_reason"] == {"type": "stop", "matched": "b"}
    assert second["meta_info"]["finish_reason"]["type"] == "length"
    for path, name, fields in (
        ("/v1/completions", "stop_regex", {"prompt": "x", "stop_regex": "("}),
        ("/generate", "sampling_params.stop_regex", {"text": "x", "sampling_params": {"stop_regex": "("}}),
    ):
        error = post(tokenizer, path, **fields)["error"]
        assert error["param"] == name
        assert error["message"].startswith(f"{name}: '(' is not a regular expression that can be used")
    costly = {"prompt": "x", "stop_regex": "(.{1,300}x){1,300}y", "max_tokens": 1000}
    error = post(tokenizer, "/v1/completions", tokenizer.encode("ax" * 500), **costly)["error"]
    assert (error["code"], error["param"]) == (None, "stop_regex")
    assert "takes too much to look for in this text" in error["message"]
