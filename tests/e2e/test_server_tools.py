"""Tools, reasoning and the control of a running server, through the openai client where it can say it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import openai
import pydantic
import pytest
from support.server_process import SCRIPTED, ServerProcess, until

from nextn.server.parsers.deepseek import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR

TEMPLATE = Path(__file__).parents[2] / "examples" / "deepseek_v31_tools.jinja"
CALLS = [("look", '{"where": "src"}'), ("look", '{"where": "docs"}')]
ANSWER = (
    "<think>Where?</think>I look."
    + CALLS_BEGIN
    + "".join(f"{CALL_BEGIN}{name}{SEPARATOR}{arguments}{CALL_END}" for name, arguments in CALLS)
    + f"{CALLS_END}§"
)
STOP = "§"  # the scripted engine would go on for ever
MESSAGES: list[Any] = [{"role": "user", "content": "What is there?"}]
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"where": {"type": "string"}}},
        },
    }
]


@pytest.fixture(scope="module")
def server(tokenizer_folder: Path) -> Iterator[ServerProcess]:
    options = (
        "--tool-call-parser", "deepseekv31", "--reasoning-parser", "deepseek-v3",
        "--chat-template", str(TEMPLATE), "--context-length", "4096",
    )  # fmt: skip
    environment = {"SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_TEXT": ANSWER}
    with ServerProcess([SCRIPTED, "--port", "0", *options], environment) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    fields = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "stop": STOP, **fields}
    return client.chat.completions.create(model="scripted", **fields)


def test_tool_calls(client: openai.OpenAI) -> None:
    (choice,) = ask(client).choices
    assert choice.finish_reason == "tool_calls"
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == CALLS
    assert (choice.message.content, choice.message.reasoning_content) == ("I look.", "Where?")
    # The answer and what the calls gave go back as they are.
    results = [{"role": "tool", "tool_call_id": c.id, "content": "files"} for c in choice.message.tool_calls]
    again = ask(client, messages=[*MESSAGES, choice.message, *results])
    assert again.usage.prompt_tokens > ask(client).usage.prompt_tokens


def test_streamed_tool_calls(client: openai.OpenAI) -> None:
    """Put together by the openai client itself."""
    content, thoughts = "", ""
    with client.chat.completions.stream(
        model="scripted", messages=MESSAGES, tools=TOOLS, temperature=0, stop=STOP
    ) as stream:
        for event in stream:
            if event.type == "chunk":
                (choice,) = event.chunk.choices
                content += choice.delta.content or ""
                thoughts += getattr(choice.delta, "reasoning_content", "")
        (last,) = stream.get_final_completion().choices
    assert (content, thoughts, last.finish_reason) == ("I look.", "Where?", "tool_calls")
    assert last.message.tool_calls is not None
    assert [(c.function.name, c.function.arguments) for c in last.message.tool_calls] == CALLS


def test_one_call_only(client: openai.OpenAI) -> None:
    (choice,) = ask(client, parallel_tool_calls=False).choices
    assert choice.finish_reason == "tool_calls"
    assert [(c.function.name, c.function.arguments) for c in choice.message.tool_calls] == CALLS[:1]


def test_no_tools(client: openai.OpenAI) -> None:
    given = ANSWER.removesuffix(STOP)
    (choice,) = ask(client, tool_choice="none").choices
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert choice.message.content == given.partition("</think>")[2]
    (raw,) = ask(client, tools=openai.NOT_GIVEN, extra_body={"separate_reasoning": False}).choices
    assert raw.message.content == given


def test_the_template_shows_the_tools(server: ServerProcess) -> None:
    def prompt(**fields: Any) -> str:
        tokens = httpx.post(server.url + "/tokenize", json={"messages": MESSAGES, **fields}).json()["tokens"]
        text = httpx.post(server.url + "/detokenize", json={"tokens": tokens}).json()["text"]
        return str(text)

    shown = prompt(tools=TOOLS, chat_template_kwargs={"thinking": True})
    assert "### look\n" in shown
    assert json.dumps(TOOLS[0]["function"]["parameters"]) in shown
    assert shown.endswith("<｜User｜>What is there?<｜Assistant｜><think>")
    assert prompt().startswith("<｜User｜>")


def test_an_unfinished_message_is_gone_on_with(client: openai.OpenAI) -> None:
    messages = [*MESSAGES, {"role": "assistant", "content": "<think>Hm.</think>So"}]
    with pytest.raises(openai.BadRequestError, match="changes the final message"):
        ask(client, messages=messages, extra_body={"continue_final_message": True})
    messages[-1]["content"] = "So"
    answer = ask(client, messages=messages, extra_body={"continue_final_message": True})
    assert answer.choices[0].message.content == "I look."


def test_abort(slow: ServerProcess) -> None:
    """By the id of its answer, while it streams."""

    async def play() -> Any:
        async with openai.AsyncOpenAI(base_url=slow.url + "/v1", api_key="none") as client:
            stream = await client.completions.create(
                model="scripted", prompt="x", max_tokens=500, stream=True
            )
            first = await anext(stream)
            async with httpx.AsyncClient() as http:
                await http.post(slow.url + "/abort_request", json={"rid": first.id})
            return [chunk async for chunk in stream][-1]

    assert asyncio.run(play()).choices[0].finish_reason == "abort"
    until(lambda: httpx.get(slow.url + "/v1/loads").json()["loads"][0]["num_total_reqs"] == 0)


def test_flushing_the_cache(fake: ServerProcess) -> None:
    body = {"prompt": "def once_more(path):\n" * 8, "max_tokens": 2}

    def cached() -> int:
        answer = httpx.post(fake.url + "/v1/completions", json=body).json()
        return int(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    cached()
    assert cached() > 0
    until(lambda: httpx.post(fake.url + "/flush_cache").status_code == 200)
    assert cached() == 0
    assert httpx.get(fake.url + "/health_generate").status_code == 200
    assert httpx.get(fake.url + "/flush_cache").text == "Cache flushed.\n"


def test_best_of(fake: ServerProcess) -> None:
    """The n whose tokens are the most likely on average, of all that n asks for."""
    body = {"prompt": "import ", "max_tokens": 8, "temperature": 2, "seed": 5, "logprobs": 0}

    def texts(**fields: int) -> list[tuple[float, str]]:
        answer = httpx.post(fake.url + "/v1/completions", json=body | fields).json()
        assert [c["index"] for c in answer["choices"]] == list(range(fields["n"]))
        assert answer["usage"]["completion_tokens"] == 8 * max(fields.values())
        means = [sum(c["logprobs"]["token_logprobs"]) / 8 for c in answer["choices"]]
        return list(zip(means, [c["text"] for c in answer["choices"]], strict=True))

    best = texts(n=2, best_of=6)
    assert best == sorted(texts(n=6), key=lambda one: -one[0])[:2]
    quiet = httpx.post(fake.url + "/v1/completions", json=body | {"n": 2, "best_of": 6, "logprobs": None})
    assert [(c["text"], c["logprobs"]) for c in quiet.json()["choices"]] == [(text, None) for _, text in best]


class Look(pydantic.BaseModel):
    where: Literal["src", "docs"]
    deep: bool


class Stop(pydantic.BaseModel):
    """No arguments."""


@pytest.fixture(scope="module")
def forced() -> Iterator[openai.OpenAI]:
    """The fake model would say anything."""
    command = [
        "-m", "nextn", "serve", "--model-path", "fake:1,0.75", "--served-model-name", "fake", "--port", "0",
        "--threads", "1", "--kv-cache-tokens", "4096", "--chat-template", str(TEMPLATE),
        "--tool-call-parser", "deepseekv31", "--reasoning-parser", "deepseek-v3",
    ]  # fmt: skip
    with ServerProcess(command) as server, openai.OpenAI(base_url=server.url + "/v1", api_key="none") as made:
        yield made


def test_strict_functions_with_mtp_and_without(forced: openai.OpenAI) -> None:
    """The fake model makes no calls; its text is free, and the same. A schema that is none is refused."""
    tools = [openai.pydantic_function_tool(tool) for tool in (Look, Stop)]
    assert all(tool["function"]["strict"] for tool in tools)
    fields: dict[str, Any] = {"model": "fake", "messages": MESSAGES, "seed": 3, "max_tokens": 60, "n": 2}
    texts = []
    for steps in (0, 2):
        extra = {"speculative": {"num_steps": steps}}
        choices = forced.chat.completions.create(**fields, tools=tools, extra_body=extra).choices
        assert all(choice.message.tool_calls is None for choice in choices)
        texts.append([choice.message.content for choice in choices])
    assert texts[0] == texts[1]
    assert all(len(text) > 60 for text in texts[0])
    bad: Any = {"name": "f", "parameters": {"type": "nothing"}, "strict": True}
    with pytest.raises(openai.BadRequestError, match="structural_tag: "):
        forced.chat.completions.create(**fields, tools=[{"type": "function", "function": bad}])


@pytest.mark.parametrize("choice", ["required", "Stop"])
def test_the_model_is_held_to_a_call(forced: openai.OpenAI, choice: str) -> None:
    named: Any = {"type": "function", "function": {"name": choice}}
    fields: dict[str, Any] = {
        "model": "fake", "messages": MESSAGES,
        "tools": [openai.pydantic_function_tool(tool) for tool in (Look, Stop)],
        "tool_choice": choice if choice == "required" else named, "parallel_tool_calls": False, "seed": 3,
        "max_tokens": 600,
    }  # fmt: skip
    texts = []
    for steps in (0, 2):
        extra = {"speculative": {"num_steps": steps}}
        (answer,) = forced.chat.completions.parse(**fields, extra_body=extra).choices
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Stop if choice == "Stop" else (Look, Stop))
        texts.append((call.function.name, call.function.arguments))
    with forced.chat.completions.stream(**fields) as stream:
        (last,) = stream.get_final_completion().choices
    texts += [(c.function.name, c.function.arguments) for c in last.message.tool_calls or []]
    assert texts == texts[:1] * 3
