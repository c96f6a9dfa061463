"""Checks of the openai client on a server with a key. Runs in the client's environment:

    PYTHONPATH=benchmarks/interop ENV/bin/python benchmarks/interop/checks/openai_client.py '{"url": ...}'

The last line of the output is the findings as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import sys
import time
from typing import Any

import openai
import plain_calls
import pydantic
from blanks import no_blanks
from findings import Checks, Failed, expect, expect_equal

checks = Checks()

PROMPT = "import os\n\n\ndef read(path):"
ASKED: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0}
MESSAGES: list[Any] = [{"role": "user", "content": "Write a function that reads a file."}]
CHAT: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 32, "temperature": 0}


class Colour(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    name: str = pydantic.Field(pattern="^[a-z]{2,8}$")
    red: bool


class Look(pydantic.BaseModel):
    """Look at a place"""

    model_config = pydantic.ConfigDict(extra="forbid")

    deep: bool


class Server:
    """A server that the checks call through the client, and directly."""

    def __init__(self, url: str, model: str, key: str, tokenizer: str) -> None:
        self.url, self.model, self.key = url, model, key
        self.no_blanks = no_blanks(tokenizer)
        self.settings: dict[str, Any] = {"base_url": url + "/v1", "api_key": key, "max_retries": 0}
        self.client = openai.OpenAI(**self.settings)

    def plain(self, path: str, **body: Any) -> Any:
        return plain_calls.post(self.url + path, {"model": self.model, **body}, self.key)

    def plain_text(self, **more: Any) -> str:
        return self.plain("/v1/completions", **ASKED, **more)["choices"][0]["text"]

    def plain_chat(self, **more: Any) -> str:
        return self.plain("/v1/chat/completions", **{**CHAT, **more})["choices"][0]["message"]["content"]


@checks("models")
def models(server: Server) -> str:
    listed = [model.id for model in server.client.models.list()]
    expect_equal(listed, [server.model], "models")
    expect_equal(server.client.models.retrieve(server.model).id, server.model, "the model")
    return f"lists and retrieves {server.model}"


@checks("completions")
def completions(server: Server) -> str:
    done = server.client.completions.create(model=server.model, **ASKED)
    expect_equal(done.choices[0].text, server.plain_text(), "text")
    expect(done.usage is not None and done.usage.completion_tokens == 40, f"usage {done.usage}")
    return "text of a plain call, 40 tokens in its usage"


@checks("completions: several prompts, n, seed")
def several(server: Server) -> str:
    asked: dict[str, Any] = {"prompt": ["def a(", "class B"], "n": 2, "max_tokens": 8, "temperature": 1}
    runs = [server.client.completions.create(model=server.model, seed=5, **asked) for _ in range(2)]
    texts = [[choice.text for choice in run.choices] for run in runs]
    expect_equal(texts[0], texts[1], "the texts of a seed")
    expect(len(set(texts[0])) == 4, f"four different texts were expected: {texts[0]}")
    return "2 prompts, 2 texts each, the same again by their seed"


@checks("completions, streamed")
def streamed(server: Server) -> str:
    stream = server.client.completions.create(
        model=server.model, **ASKED, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    expect_equal(text, server.plain_text(), "text")
    expect(len(chunks) > 5, f"{len(chunks)} chunks")
    usage = chunks[-1].usage
    expect(usage is not None and usage.completion_tokens == 40, f"usage {usage}")
    return "text of a plain call in more than 5 chunks, usage in the last"


@checks("log-probabilities of completions, echo")
def logprobs(server: Server) -> str:
    asked = {**ASKED, "max_tokens": 0}
    done = server.client.completions.create(model=server.model, **asked, echo=True, logprobs=3)
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert logprobs.token_logprobs is not None
    expect_equal("".join(logprobs.tokens).removeprefix("<｜begin▁of▁sentence｜>"), PROMPT, "tokens")
    expect(logprobs.token_logprobs[0] is None, "the first token has a log-probability")
    expect(
        all(value is not None and value <= 0 for value in logprobs.token_logprobs[1:]), "log-probabilities"
    )
    return f"{len(logprobs.tokens)} tokens of the prompt, with 3 alternatives each"


@checks("chat")
def chat(server: Server) -> str:
    done = server.client.chat.completions.create(model=server.model, **CHAT)
    expect_equal(done.choices[0].message.content, server.plain_chat(), "text")
    return "text of a plain call"


@checks("chat, streamed")
def chat_streamed(server: Server) -> str:
    stream = server.client.chat.completions.create(model=server.model, **CHAT, stream=True)
    deltas = [choice.delta.content or "" for chunk in stream for choice in chunk.choices]
    expect_equal("".join(deltas), server.plain_chat(), "text")
    expect(len(deltas) > 5, f"{len(deltas)} chunks")
    return "text of a plain call in more than 5 chunks"


@checks("log-probabilities of a chat")
def chat_logprobs(server: Server) -> str:
    done = server.client.chat.completions.create(model=server.model, **CHAT, logprobs=True, top_logprobs=2)
    logprobs = done.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    raw = b"".join(bytes(each.bytes or []) for each in logprobs.content)
    expect_equal(raw.decode(), done.choices[0].message.content, "the tokens' bytes")
    # Decoding is greedy, so the chosen token is the most likely one.
    expect(
        all(each.top_logprobs[0].logprob == each.logprob for each in logprobs.content), "the best are others"
    )
    return f"{len(logprobs.content)} tokens, their bytes are the text, each the first of its alternatives"


@checks("structured output from a pydantic model")
def structured(server: Server) -> str:
    done = server.client.chat.completions.parse(
        model=server.model, messages=MESSAGES, response_format=Colour, max_tokens=64,
        logit_bias=server.no_blanks,
    )  # fmt: skip
    parsed = done.choices[0].message.parsed
    expect(isinstance(parsed, Colour), f"{done.choices[0].message.content!r} was not parsed")
    return "chat.completions.parse gives an instance"


@checks("structured output, by the stream helper")
def structured_streamed(server: Server) -> str:
    with server.client.chat.completions.stream(
        model=server.model, messages=MESSAGES, response_format=Colour, max_tokens=64,
        logit_bias=server.no_blanks,
    ) as stream:  # fmt: skip
        deltas = [event.delta for event in stream if event.type == "content.delta"]
        final = stream.get_final_completion().choices[0].message
    expect_equal("".join(deltas), final.content, "the final message")
    expect(isinstance(final.parsed, Colour), f"{final.content!r} was not parsed")
    return "its events give the final message, which is parsed"


@checks("tools")
def tools(server: Server) -> str:
    done = server.client.chat.completions.parse(
        model=server.model, messages=MESSAGES, tools=[openai.pydantic_function_tool(Look)],
        tool_choice="required", parallel_tool_calls=False, max_tokens=160,
        logit_bias=server.no_blanks,
    )  # fmt: skip
    choice = done.choices[0]
    expect_equal(choice.finish_reason, "tool_calls", "finish_reason")
    (call,) = choice.message.tool_calls or []
    expect(isinstance(call.function.parsed_arguments, Look), f"arguments {call.function.arguments!r}")
    result = {"role": "tool", "tool_call_id": call.id, "content": "three files"}
    again = server.client.chat.completions.create(
        model=server.model, messages=[*MESSAGES, choice.message, result], max_tokens=8
    )
    expect(again.usage is not None, "no usage")
    return "a call parsed into its pydantic model, its result sent back"


@checks("tools, streamed")
def tools_streamed(server: Server) -> str:
    with server.client.chat.completions.stream(
        model=server.model, messages=MESSAGES, tools=[openai.pydantic_function_tool(Look)],
        tool_choice={"type": "function", "function": {"name": "Look"}}, parallel_tool_calls=False,
        max_tokens=160, logit_bias=server.no_blanks,
    ) as stream:  # fmt: skip
        pieces = [e.arguments_delta for e in stream if e.type == "tool_calls.function.arguments.delta"]
        (call,) = stream.get_final_completion().choices[0].message.tool_calls or []
    expect_equal("".join(pieces), call.function.arguments, "the arguments' pieces")
    expect(isinstance(call.function.parsed_arguments, Look), f"arguments {call.function.arguments!r}")
    return "the pieces of a named tool's arguments, put together by the client"


@checks("async client, 8 requests at once")
def at_once(server: Server) -> str:
    prompts = [f"def f{i}(" for i in range(8)]

    async def all_of_them() -> list[str]:
        async with openai.AsyncOpenAI(**server.settings) as client:

            async def one(prompt: str) -> str:
                stream = await client.completions.create(
                    model=server.model, prompt=prompt, max_tokens=24, temperature=0, stream=True
                )
                return "".join([c.text async for chunk in stream for c in chunk.choices])

            return await asyncio.gather(*map(one, prompts))

    together = asyncio.run(all_of_them())
    asked = {"max_tokens": 24, "temperature": 0}
    alone = [
        server.plain("/v1/completions", prompt=p, **asked)["choices"][0]["text"] for p in prompts
    ]  # fmt: skip
    expect_equal(together, alone, "texts")
    return "the texts of plain calls one by one"


@checks("a stream that is closed early")
def closed(server: Server) -> str:
    def running() -> float:
        return plain_calls.metrics(server.url)["nextn:num_running_reqs"]

    stream = server.client.completions.create(
        model=server.model, prompt=PROMPT, max_tokens=3000, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    next(iter(stream))
    expect_equal(running(), 1.0, "running requests")
    stream.close()
    deadline = time.monotonic() + 5
    while running():
        expect(time.monotonic() < deadline, "the request goes on")
        time.sleep(0.02)
    return "ends the request in the server"


@checks("errors as the client's exceptions")
def errors(server: Server) -> str:
    def raises(
        kind: type[openai.APIStatusError], client: openai.OpenAI, **fields: Any
    ) -> openai.APIStatusError:
        try:
            client.completions.create(**{"model": server.model, **ASKED, **fields})
        except kind as e:
            return e
        raise Failed(f"no {kind.__name__}")

    wrong = openai.OpenAI(**{**server.settings, "api_key": "another"})
    raises(openai.AuthenticationError, wrong)
    raises(openai.NotFoundError, server.client, model="no-such-model")
    error = raises(openai.BadRequestError, server.client, temperature=-1)
    expect_equal(getattr(error, "param", None), "temperature", "param")
    try:
        server.client.with_options(timeout=0.05).completions.create(
            model=server.model, prompt=PROMPT, max_tokens=3000, extra_body={"ignore_eos": True}
        )
        raise Failed("no APITimeoutError")
    except openai.APITimeoutError:
        pass
    return "AuthenticationError, NotFoundError, BadRequestError with its param, APITimeoutError"


@checks("nextn's own fields by extra_body, request ids")
def own_fields(server: Server) -> str:
    done = server.client.completions.with_raw_response.create(
        model=server.model, **ASKED,
        extra_body={"speculative": {"num_steps": 3}, "return_spec_tokens_details": True},
        extra_headers={"X-Request-ID": "interop-1"},
    )  # fmt: skip
    expect_equal(done.headers["x-request-id"], "interop-1", "X-Request-ID")
    answer: Any = done.parse()
    details = answer.usage.model_extra["spec_details"]
    expect_equal(len(details["proposed"]), 3, "depths drafted")
    expect_equal(answer.choices[0].text, server.plain_text(speculative=False), "text without MTP")
    return "3 drafts a step by request, the text of a call without MTP"


@checks("responses, /v1/responses")
def responses(server: Server) -> str:
    done = server.client.responses.create(model=server.model, input="x", max_output_tokens=16)
    return f"{len(done.output_text)} characters"


if __name__ == "__main__":
    print(json.dumps([dataclasses.asdict(f) for f in checks.run(Server(**json.loads(sys.argv[1])))]))
