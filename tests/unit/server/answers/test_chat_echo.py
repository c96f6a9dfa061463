"""A chat's `echo`: the content begins with the message that the answer is a part of, or follows."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_socket import post

from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer

USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "So "}
PARTS = {"role": "assistant", "content": [{"type": "text", "text": "So "}]}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    ("fields", "echo"),
    [
        ({"messages": [USER, ANSWER], "continue_final_message": True}, "So "),
        ({"messages": [USER, PARTS], "continue_final_message": True}, "So "),
        ({"messages": [USER, ANSWER]}, "So "),
        ({"messages": [USER], "add_generation_prompt": False}, "hi"),
        ({"messages": [USER]}, ""),
        ({"messages": [USER, ANSWER], "continue_final_message": True, "echo": False}, ""),
    ],
)
def test_echo(tokenizer: Tokenizer, stream: bool, n: int, fields: dict[str, Any], echo: str) -> None:
    """Its tokens have no log-probabilities: they were not chosen."""
    tokens = tokenizer.encode("<think>Hm.</think>it is", add_special_tokens=False)
    config = ServerConfig(reasoning_parser="deepseek-v3")
    body = {"echo": True, "logprobs": True, "n": n, "stream": stream, **fields}
    got = post(tokenizer, "/v1/chat/completions", tokens, [3, 1, 1], None, config, **body)
    said, thought, shown = [""] * n, [""] * n, [0] * n
    for event in got if stream else [got]:
        for choice in event["choices"]:
            text = choice["delta" if stream else "message"]
            said[choice["index"]] += text.get("content") or ""
            thought[choice["index"]] += text.get("reasoning_content") or ""
            shown[choice["index"]] += len((choice["logprobs"] or {"content": []})["content"])
    assert said == [echo + "it is"] * n
    assert thought == ["Hm."] * n
    assert shown == [len(tokens)] * n
