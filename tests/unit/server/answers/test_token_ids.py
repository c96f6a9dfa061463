"""return_token_ids: the answer's tokens and the prompt's, whole and in chunks."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.scripted_socket import post

from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer

TEXT = "<think>héllo €uro</think> stop here"
EOS = 1
PARSED = ServerConfig(reasoning_parser="deepseek-v3")


@settings(max_examples=50, deadline=None, derandomize=True)
@given(
    chat=st.booleans(), cuts=st.lists(st.integers(1, 5), max_size=20), n=st.integers(1, 2),
    stop=st.sampled_from([[], ["stop"]]), matched=st.sampled_from([None, EOS]),
    config=st.sampled_from([None, PARSED]),
)  # fmt: skip
def test_chunks_add_up_to_the_whole(
    tokenizer: Tokenizer, chat: bool, cuts: list[int], n: int, stop: list[str], matched: int | None,
    config: ServerConfig | None,
) -> None:  # fmt: skip
    """The end token is among them, and the token that completed a stop string; text that is held back has
    nothing to do with it."""
    tokens = tokenizer.encode(TEXT, add_special_tokens=False)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": [0, 5]}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    prompt = tokenizer.encode("<bos>user: hi\n", add_special_tokens=False) if chat else [0, 5]
    used = tokens[: len(tokens) - len(b" here")] if stop else tokens
    ended = [EOS] if matched is not None and not stop else []
    body |= {"return_token_ids": True, "n": n, "stop": stop}
    whole = post(tokenizer, path, tokens, cuts, matched, config, **body)
    assert [choice["token_ids"] for choice in whole["choices"]] == [used + ended] * n
    if chat:
        assert whole["prompt_token_ids"] == prompt
    else:
        assert [choice["prompt_token_ids"] for choice in whole["choices"]] == [prompt] * n
    shown, firsts = [list[int]() for _ in range(n)], [list[bool]() for _ in range(n)]
    for chunk in post(tokenizer, path, tokens, cuts, matched, config, **body, stream=True):
        (choice,) = chunk["choices"]
        shown[choice["index"]] += choice.get("token_ids", [])
        begin = (chunk if chat else choice).get("prompt_token_ids")
        assert begin in (None, prompt)
        firsts[choice["index"]].append(begin is not None)
    assert shown == [used + ended] * n
    assert all(first and not any(rest) for first, *rest in firsts)


@pytest.mark.parametrize("chat", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_none_unasked(tokenizer: Tokenizer, chat: bool, stream: bool) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    body: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]} if chat else {"prompt": "x"}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    assert "token_ids" not in str(post(tokenizer, path, tokens, stream=stream, **body))


def test_the_best_of_several_have_their_own(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.encode("ab", add_special_tokens=False)
    answer = post(tokenizer, "/v1/completions", tokens, prompt="x", best_of=3, n=2, return_token_ids=True)
    assert [choice["token_ids"] for choice in answer["choices"]] == [tokens, tokens]
