"""Tool calls and reasoning of GLM and Qwen, through the openai client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

import httpx
import openai
import pydantic
import pytest
from support.chat_templates import GLM45, GLM47, QWEN3, QWEN3_CODER
from support.server_process import SCRIPTED, ServerProcess
from support.tool_calls import answer, written

STOP = "§"  # the scripted engine would go on for ever
MESSAGES: list[Any] = [{"role": "user", "content": "What is there?"}]
PROPERTIES = {"where": {"type": "string"}, "depth": {"type": "integer"}}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {"name": "look", "parameters": {"type": "object", "properties": PROPERTIES}},
    }
]
CALLS: list[Any] = [("look", {"where": "<b>é</b>\n5", "depth": 2}), ("look", {"where": "5"})]
THOUGHT = {
    "glm45": "\n<think>Where?</think>\n",
    "hermes": "<think>Where?</think>",
    "qwen3_coder": "Where?</think>",
}
TEMPLATES = {"glm45": GLM45, "hermes": QWEN3, "qwen3_coder": QWEN3_CODER}
CLOSED = {"glm45": "\n<think></think>"}


class Served(NamedTuple):
    name: str
    url: str
    client: openai.OpenAI

    def ask(self, **fields: Any) -> Any:
        fields = {"messages": MESSAGES, "tools": TOOLS, "temperature": 0, "stop": STOP, **fields}
        (choice,) = self.client.chat.completions.create(model="scripted", **fields).choices
        return choice

    def prompt(self, **fields: Any) -> str:
        tokens = httpx.post(self.url + "/tokenize", json={"messages": MESSAGES, **fields}).json()["tokens"]
        return str(httpx.post(self.url + "/detokenize", json={"tokens": tokens}).json()["text"])


@pytest.fixture(scope="module", params=sorted(THOUGHT))
def served(request: Any, tokenizer_folder: Path, tmp_path_factory: Any) -> Iterator[Served]:
    name = request.param
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(TEMPLATES[name])
    command = [
        SCRIPTED, "--port", "0", "--context-length", "4096", "--chat-template", str(template),
        "--tool-call-parser", {"hermes": "qwen3"}.get(name, name),
        "--reasoning-parser", "glm45" if name == "glm45" else "qwen3",
    ]  # fmt: skip
    text = f"{THOUGHT[name]}I look.\n{answer(name, CALLS)}\n{STOP}"
    environment = {"SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_TEXT": text}
    with (
        ServerProcess(command, environment) as server,
        openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client,
    ):
        yield Served(name, server.url, client)


def calls_of(message: Any) -> list[Any]:
    return [(c.function.name, json.loads(c.function.arguments)) for c in message.tool_calls or []]


def test_whole_answers(served: Served) -> None:
    choice = served.ask()
    assert choice.finish_reason == "tool_calls"
    assert calls_of(choice.message) == CALLS
    assert choice.message.content.strip() == "I look."
    assert choice.message.reasoning_content == "Where?"
    # The answer goes back as it is, and the template shows its calls in the model's format.
    results = [{"role": "tool", "tool_call_id": c.id, "content": "files"} for c in choice.message.tool_calls]
    again = served.prompt(messages=[*MESSAGES, choice.message.model_dump(), *results], tools=TOOLS)
    assert all(written(served.name, call) in again for call in CALLS)
    assert again.count("<tool_response>files</tool_response>") == 2
    assert json.dumps(TOOLS[0]) in again


def test_streams(served: Served) -> None:
    """Put together by the openai client itself."""
    content, thoughts, pieces = "", "", 0
    with served.client.chat.completions.stream(
        model="scripted", messages=MESSAGES, tools=TOOLS, temperature=0, stop=STOP
    ) as stream:
        for event in stream:
            if event.type == "chunk":
                (choice,) = event.chunk.choices
                content += choice.delta.content or ""
                thoughts += getattr(choice.delta, "reasoning_content", "")
                pieces += len(choice.delta.tool_calls or [])
        (last,) = stream.get_final_completion().choices
    assert (content.strip(), thoughts, last.finish_reason) == ("I look.", "Where?", "tool_calls")
    assert calls_of(last.message) == CALLS
    assert pieces >= 2 * len(CALLS)  # names go first


def test_one_call_only(served: Served) -> None:
    choice = served.ask(parallel_tool_calls=False)
    assert (choice.finish_reason, calls_of(choice.message)) == ("tool_calls", CALLS[:1])


def test_no_tools(served: Served) -> None:
    choice = served.ask(tool_choice="none")
    assert (choice.finish_reason, choice.message.tool_calls) == ("stop", None)
    assert answer(served.name, CALLS) in choice.message.content
    assert "# Tools" not in served.prompt(tools=TOOLS, tool_choice="none")


def test_thinking_can_be_turned_off(served: Served) -> None:
    """The prompt closes the reasoning, so the answer is content; unless it opens reasoning nevertheless."""
    off: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
    closed = CLOSED.get(served.name, "<think>\n\n</think>\n\n")
    assert served.prompt(**off).endswith(closed)
    assert served.prompt(reasoning_effort="none").endswith(closed)
    assert not served.prompt().endswith(closed)
    message = served.ask(extra_body=off).message
    opened = served.name == "hermes"
    assert message.model_dump().get("reasoning_content") == ("Where?" if opened else None)
    assert message.content.startswith("I look." if opened else THOUGHT[served.name] + "I look.")
    assert calls_of(message) == CALLS


class Look(pydantic.BaseModel):
    where: Literal["src", "docs"]
    depth: Literal[1, 2]
    deep: bool


class Stop(pydantic.BaseModel):
    """No arguments."""


@pytest.fixture(scope="module")
def forced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    """The fake model would say anything."""
    template = tmp_path_factory.mktemp("template") / "chat.jinja"
    template.write_text(GLM47)
    command = [
        "-m", "nextn", "serve", "--model-path", "fake:1,0.75", "--served-model-name", "fake", "--port", "0",
        "--threads", "1", "--kv-cache-tokens", "4096", "--chat-template", str(template),
        "--tool-call-parser", "glm47", "--reasoning-parser", "glm45",
    ]  # fmt: skip
    with ServerProcess(command) as server, openai.OpenAI(base_url=server.url + "/v1", api_key="none") as made:
        yield made


@pytest.mark.parametrize("choice", ["required", "Look"])
def test_the_model_is_held_to_a_call(forced: openai.OpenAI, choice: str) -> None:
    """In GLM's format, with MTP and without, whole and streamed."""
    named: Any = {"type": "function", "function": {"name": choice}}
    fields: dict[str, Any] = {
        "model": "fake", "messages": MESSAGES, "seed": 3, "max_tokens": 600, "parallel_tool_calls": False,
        "tools": [openai.pydantic_function_tool(tool) for tool in (Look, Stop)],
        "tool_choice": choice if choice == "required" else named,
    }  # fmt: skip
    texts = []
    for steps in (0, 2):
        extra = {"speculative": {"num_steps": steps}, "chat_template_kwargs": {"enable_thinking": False}}
        (answer,) = forced.chat.completions.parse(**fields, extra_body=extra).choices
        assert answer.finish_reason == "tool_calls"
        (call,) = answer.message.tool_calls or []
        assert isinstance(call.function.parsed_arguments, Look if choice == "Look" else (Look, Stop))
        texts.append((call.function.name, call.function.arguments))
    with forced.chat.completions.stream(**fields, extra_body=extra) as stream:
        (last,) = stream.get_final_completion().choices
    texts += [(c.function.name, c.function.arguments) for c in last.message.tool_calls or []]
    assert texts == texts[:1] * 3
