"""The streaming APIs that the load client speaks: path, request body, and how to read a chunk.

`BACKENDS` maps bench_serving's names of servers to APIs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Body = Mapping[str, Any]
Chunk = Mapping[str, Any]
Prompt = str | list[int]


@dataclass(frozen=True)
class Update:
    """The contents of one chunk of a stream. `text` is the new text, or the whole text so far if
    `cumulative`. Token counts are totals so far; None if the chunk has none.
    """

    text: str
    ends: bool
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cumulative: bool = False


@dataclass(frozen=True)
class Api:
    path: str
    takes_ids: bool  # a prompt can be token ids
    counts: bool  # every chunk with text has the number of tokens so far
    body: Callable[[str | None, Prompt, int, bool], dict[str, Any]]  # model, prompt, tokens, ignore_eos
    streamed: Callable[[Body], dict[str, Any]]  # the body with the fields that request a stream with usage
    read: Callable[[Chunk], Update]  # raises KeyError, TypeError or IndexError for any other chunk


def completion_body(model: str | None, prompt: Prompt, tokens: int, ignore_eos: bool) -> dict[str, Any]:
    return {
        "model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0.0, "ignore_eos": ignore_eos,
    }  # fmt: skip


def chat_body(model: str | None, prompt: Prompt, tokens: int, ignore_eos: bool) -> dict[str, Any]:
    return {
        "model": model, "messages": [{"role": "user", "content": prompt}], "max_completion_tokens": tokens,
        "temperature": 0.0, "ignore_eos": ignore_eos,
    }  # fmt: skip


def generate_body(model: str | None, prompt: Prompt, tokens: int, ignore_eos: bool) -> dict[str, Any]:
    return {
        "text" if isinstance(prompt, str) else "input_ids": prompt,
        "sampling_params": {"temperature": 0.0, "max_new_tokens": tokens, "ignore_eos": ignore_eos},
    }


def with_usage(body: Body) -> dict[str, Any]:
    return {**body, "stream": True, "stream_options": {"include_usage": True}}


def plain_stream(body: Body) -> dict[str, Any]:
    return {**body, "stream": True}


def read_completion(chunk: Chunk) -> Update:
    return read_openai(chunk, lambda choice: choice["text"])


def read_chat(chunk: Chunk) -> Update:
    def text(choice: Mapping[str, Any]) -> str:
        delta = choice["delta"]
        return (delta.get("reasoning_content") or "") + (delta.get("content") or "")

    return read_openai(chunk, text)


def read_openai(chunk: Chunk, text_of: Callable[[Mapping[str, Any]], str]) -> Update:
    usage, choices = chunk.get("usage") or {}, chunk["choices"]
    return Update(
        "".join(text_of(choice) for choice in choices),
        any(choice["finish_reason"] for choice in choices),
        usage.get("prompt_tokens"),
        usage.get("completion_tokens"),
    )


def read_generate(chunk: Chunk) -> Update:
    meta = chunk["meta_info"]
    ends = meta["finish_reason"] is not None
    return Update(chunk["text"], ends, meta["prompt_tokens"], meta["completion_tokens"], cumulative=True)


COMPLETIONS = Api("/v1/completions", True, False, completion_body, with_usage, read_completion)
CHAT = Api("/v1/chat/completions", False, False, chat_body, with_usage, read_chat)
GENERATE = Api("/generate", True, True, generate_body, plain_stream, read_generate)

BACKENDS: dict[str, Api] = {
    "nextn": COMPLETIONS,
    "sglang": GENERATE,
    "sglang-oai": COMPLETIONS,
    "sglang-oai-chat": CHAT,
    "vllm": COMPLETIONS,
}
