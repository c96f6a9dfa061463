"""Checks of litellm's SDK on a server with a key. Runs in litellm's environment, like openai_client.py.

The last line of the output is the findings as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
from typing import Any

import litellm
import plain_calls
from blanks import no_blanks
from findings import Checks, Failed, expect, expect_equal

checks = Checks()

PROMPT = "import os\n\n\ndef read(path):"
MESSAGES: list[Any] = [{"role": "user", "content": "Write a function that reads a file."}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 32, "temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"red": {"type": "boolean"}},
    "required": ["red"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}


class Server:
    """A server that the checks call through litellm, with each of two matching providers, and directly."""

    def __init__(self, url: str, model: str, key: str, tokenizer: str) -> None:
        self.url, self.model, self.key = url, model, key
        self.no_blanks = no_blanks(tokenizer)

    def settings(self, provider: str) -> dict[str, Any]:
        return {
            "model": f"{provider}/{self.model}", "api_base": self.url + "/v1", "api_key": self.key,
            "num_retries": 0,
        }  # fmt: skip

    def plain_chat(self, **more: Any) -> str:
        body = {"model": self.model, **CHAT, **more}
        answer = plain_calls.post(self.url + "/v1/chat/completions", body, self.key)
        return answer["choices"][0]["message"]["content"]

    def plain_text(self, prompt: str) -> str:
        body = {"model": self.model, "prompt": prompt, "max_tokens": 24, "temperature": 0}
        return plain_calls.post(self.url + "/v1/completions", body, self.key)["choices"][0]["text"]


@checks("chat, openai/ and hosted_vllm/")
def chat(server: Server) -> str:
    for provider in ("openai", "hosted_vllm"):
        done = litellm.completion(**server.settings(provider), **CHAT)
        expect_equal(done.choices[0].message.content, server.plain_chat(), f"text of {provider}/")
        expect_equal(done.usage.completion_tokens, 32, f"tokens of {provider}/")
    return "text of a plain call, its 32 tokens counted"


@checks("chat, streamed, openai/ and hosted_vllm/")
def chat_streamed(server: Server) -> str:
    for provider in ("openai", "hosted_vllm"):
        stream = litellm.completion(
            **server.settings(provider), **CHAT, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        expect_equal(text, server.plain_chat(), f"text of {provider}/")
        whole = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
        expect(whole is not None, "stream_chunk_builder gives nothing")
        expect_equal(whole.usage.completion_tokens, 32, f"tokens of {provider}/")
    return "text of a plain call, put together by litellm with its 32 tokens"


@checks("text completions, text-completion-openai/ and hosted_vllm/")
def text_completions(server: Server) -> str:
    for provider in ("text-completion-openai", "hosted_vllm"):
        asked = {**server.settings(provider), "prompt": PROMPT, "max_tokens": 24, "temperature": 0}
        whole = litellm.text_completion(**asked).choices[0].text
        expect_equal(whole, server.plain_text(PROMPT), f"text of {provider}/")
        stream = litellm.text_completion(**asked, stream=True)
        text = "".join(choice.text or "" for chunk in stream for choice in chunk.choices)
        expect_equal(text, whole, f"streamed text of {provider}/")
    return "text of a plain call, whole and streamed"


@checks("acompletion, 8 requests at once")
def at_once(server: Server) -> str:
    asked = [[{"role": "user", "content": f"def f{i}("}] for i in range(8)]

    async def all_of_them() -> list[str]:
        calls = [
            litellm.acompletion(**server.settings("openai"), messages=m, max_tokens=16, temperature=0)
            for m in asked
        ]
        return [done.choices[0].message.content for done in await asyncio.gather(*calls)]

    alone = [server.plain_chat(messages=m, max_tokens=16) for m in asked]
    expect_equal(asyncio.run(all_of_them()), alone, "texts")
    return "the texts of plain calls one by one"


@checks("log-probabilities")
def logprobs(server: Server) -> str:
    done = litellm.completion(**server.settings("openai"), **CHAT, logprobs=True, top_logprobs=2)
    tokens = done.choices[0].logprobs.content
    expect_equal("".join(each.token for each in tokens), done.choices[0].message.content, "tokens")
    expect(all(len(each.top_logprobs) == 2 for each in tokens), "not two alternatives each")
    return f"{len(tokens)} tokens, two alternatives each"


@checks("structured output, openai/ and hosted_vllm/")
def structured(server: Server) -> str:
    form = {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA, "strict": True}}
    for provider in ("openai", "hosted_vllm"):
        done = litellm.completion(
            **server.settings(provider), messages=MESSAGES, max_tokens=48, response_format=form,
            logit_bias=server.no_blanks,
        )  # fmt: skip
        found = json.loads(done.choices[0].message.content)
        expect(set(found) == {"red"} and isinstance(found["red"], bool), f"{provider}/: {found}")
    return "JSON of the schema"


@checks("tools, whole and streamed")
def tools(server: Server) -> str:
    asked = {
        **server.settings("hosted_vllm"), "messages": MESSAGES, "tools": [TOOL], "tool_choice": "required",
        "parallel_tool_calls": False, "max_tokens": 160, "logit_bias": server.no_blanks, "temperature": 0,
    }  # fmt: skip
    whole = litellm.completion(**asked)
    (call,) = whole.choices[0].message.tool_calls
    expect_equal(call.function.name, "look", "the tool")
    expect_equal(set(json.loads(call.function.arguments)), {"red"}, "its arguments")
    built = litellm.stream_chunk_builder(list(litellm.completion(**asked, stream=True)))
    expect(built is not None, "stream_chunk_builder gives nothing")
    (streamed,) = built.choices[0].message.tool_calls
    expect_equal(streamed.function.arguments, call.function.arguments, "arguments of the stream")
    return "the same call both ways, its arguments by the schema"


@checks("errors as litellm's exceptions")
def errors(server: Server) -> str:
    def raises(kind: type[Exception], **fields: Any) -> None:
        try:
            litellm.completion(**{**server.settings("hosted_vllm"), **CHAT, **fields})
        except kind:
            return
        raise Failed(f"no {kind.__name__}")

    raises(litellm.AuthenticationError, api_key="another")
    raises(litellm.NotFoundError, model="hosted_vllm/no-such-model")
    raises(litellm.BadRequestError, temperature=-1)
    raises(litellm.Timeout, max_tokens=3000, timeout=0.05)
    return "AuthenticationError, NotFoundError, BadRequestError, Timeout"


@checks("Router over one model name")
def router(server: Server) -> str:
    made = litellm.Router(
        [{"model_name": "any", "litellm_params": server.settings("hosted_vllm")}], num_retries=0
    )
    done = made.completion(model="any", **CHAT)
    expect_equal(done.choices[0].message.content, server.plain_chat(), "text")
    return "text of a plain call"


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(f) for f in checks.run(Server(**json.loads(sys.argv[1])))]))
