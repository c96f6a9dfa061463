"""From messages to the prompt: tools, calls, final messages to go on with, what an answer begins with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_templates import GLM45, GLM47, QWEN3, QWEN3_CODER
from support.hostile_json import json_values
from support.small_tokenizer import write_small_tokenizer

from nextn.constraint import Constraint
from nextn.server.parsers.answer import AnswerFormat
from nextn.server.prompts.chat import ChatPrompt, chat_prompt, render
from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.openai import ChatRequest
from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
# Arguments as DeepSeek's templates put them in, and as templates that want an object do.
DEEPSEEK = "{{ m.tool_calls[0].function.name + '(' + m.tool_calls[0].function.arguments + ')' }}"
OBJECT = (
    "{{ m.tool_calls[0].function.name }}{{ m.tool_calls[0].function.arguments | tojson }}"
    "{{ m.tool_calls[0].function.arguments.items() | list }}"
)
LOOP = (
    "{%% for m in messages %%}[{{ m.role }}]{%% if m.tool_calls %%}%s{%% else %%}{{ m.content }}{%% endif %%}"
    "<end>{%% endfor %%}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_small_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def tokenizer(folder: Path, template: str) -> Tokenizer:
    file = folder / "other.jinja"
    file.write_text(template)
    return Tokenizer.from_folder(folder, file)


def prompt(folder: Path, template: str, options: dict[str, Any] | None = None, **fields: Any) -> ChatPrompt:
    body = json.dumps({"messages": [USER], **fields}).encode()
    config = ServerConfig(**{"tool_call_parser": "deepseekv31", **(options or {})})
    return chat_prompt(parse(body, ChatRequest), tokenizer(folder, template), config)


def refused(folder: Path, template: str, message: str, **fields: Any) -> None:
    with pytest.raises(ApiError, match=message) as error:
        prompt(folder, template, **fields)
    assert error.value.status == 400


def test_tools_are_shown_as_they_came(folder: Path) -> None:
    template = "{{ messages[0].content }}{% if tools %}{{ tools | tojson }}{% endif %}"
    assert json.loads(prompt(folder, template, tools=[TOOL]).text.removeprefix("hi")) == [TOOL]
    for nothing in ({"tools": []}, {"tools": [TOOL], "tool_choice": "none"}, {"tool_choice": "auto"}, {}):
        assert prompt(folder, template, **nothing).text == "hi"
        assert prompt(folder, template, {"tool_call_parser": None}, **nothing).text == "hi"


def test_calls_are_looked_for_where_there_are_tools(folder: Path) -> None:
    template = "{{ tools }}{{ messages[0].content }}"
    assert prompt(folder, template, tools=[TOOL]).answer_format == AnswerFormat("deepseekv31")
    assert prompt(folder, template, tools=[TOOL], tool_choice="none").answer_format == AnswerFormat()
    assert prompt(folder, template).answer_format == AnswerFormat()


def test_tools_that_nobody_would_see_are_refused(folder: Path) -> None:
    refused(folder, "{{ messages[0].content }}", "tools: the chat template does not show them", tools=[TOOL])
    with pytest.raises(ApiError, match="started without --tool-call-parser"):
        prompt(folder, "{{ tools }}", {"tool_call_parser": None}, tools=[TOOL])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tools": [{}]}, r"tools\[0\]\.function is missing"),
        ({"tools": [TOOL, {**TOOL, "type": "web"}]}, r"tools\[1\]\.type: Input should be 'function'"),
        ({"tools": [{"function": {"name": ""}}]}, r"tools\[0\]\.function\.name"),
        ({"tools": [5]}, r"tools\[0\]: "),
        ({"tools": 5}, "tools: "),
        ({"tool_choice": "any"}, "tool_choice is 'any'; it must be none, auto, required or a function"),
        ({"tool_choice": 5}, "tool_choice must be a string or an object"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.function is missing"),
        ({"tool_choice": "required"}, "tool_choice is 'required', and there are no tools"),
        (
            {"tool_choice": {"function": {"name": "go"}}, "tools": [TOOL]},
            "tool_choice names 'go', which is not",
        ),
        ({"tool_choice": "required", "tools": [TOOL], "regex": "a"}, "cannot have another grammar"),
        ({"continue_final_message": True, "add_generation_prompt": True}, "cannot both be true"),
        ({"chat_template_kwargs": {"tools": []}}, r"chat_template_kwargs\.tools is not supported"),
        ({"messages": []}, "messages is empty"),
        ({"messages": [], "continue_final_message": True}, "messages is empty"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\]\.content is missing"),
        ({"messages": [{**USER, "tool_calls": [{}]}]}, r"messages\[0\]: only an assistant"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, r"tool_calls\[0\] must have a function"),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, r"messages\[0\]\.tool_calls must be a list"),
    ],
    ids=str,
)
def test_bad_fields(folder: Path, fields: dict[str, Any], message: str) -> None:
    refused(folder, "{{ tools }}{{ messages[0].content }}", message, **fields)


@pytest.mark.parametrize("arguments", ['{"a":  "é"}', {"a": "é"}])
def test_calls_come_back(folder: Path, arguments: object) -> None:
    """An assistant's calls, and what they gave, for both kinds of templates."""
    call = {"id": "c", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "seen"}]},
    ]
    text = arguments if isinstance(arguments, str) else '{"a": "é"}'
    for form, said in ((DEEPSEEK, f"look({text})"), (OBJECT, "look{\"a\": \"é\"}[('a', 'é')]")):
        got = prompt(folder, LOOP % form, messages=messages).text
        assert got == f"[user]hi<end>[assistant]{said}<end>[tool]seen<end>"


@pytest.mark.parametrize(("arguments", "said"), [("{bro", "{bro"), ("[1]", "[1]"), ("", ""), (None, "")])
def test_a_broken_call_does_not_end_the_conversation(folder: Path, arguments: object, said: str) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    messages = [{"role": "assistant", "tool_calls": [call]}]
    assert prompt(folder, LOOP % DEEPSEEK, messages=messages).text == f"[assistant]look({said})<end>"


def test_an_answer_goes_back_as_a_message(folder: Path) -> None:
    """openai's model_dump() writes out the fields that an answer did not have; a developer is the system."""
    said = {"role": "assistant", "content": "ho", "refusal": None, "function_call": None, "tool_calls": None}
    messages = [{"role": "developer", "content": "be"}, USER, said, {**said, "tool_calls": []}]
    assert prompt(folder, LOOP % "", messages=messages).text == (
        "[system]be<end>[user]hi<end>[assistant]ho<end>[assistant]ho<end>"
    )


LOOP_AND_PROMPT = LOOP % "" + "{% if add_generation_prompt %}[assistant]<think>{% endif %}"


@pytest.mark.parametrize(
    "content", ["e", "I th", " a ", [{"type": "text", "text": "e"}], "n<think>", "a</think>b"]
)
def test_the_answer_goes_on_with_the_final_message(folder: Path, content: Any) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    said = content if isinstance(content, str) else content[0]["text"]
    got = prompt(folder, LOOP_AND_PROMPT, messages=messages, continue_final_message=True)
    assert got.text == f"[user]hi<end>[assistant]{said}"


def test_a_template_that_changes_the_final_message(folder: Path) -> None:
    messages = [USER, {"role": "assistant", "content": " a</think>b"}]
    stripping = "{{ messages[0].content }}{{ messages[-1].content | trim }}"
    assert prompt(folder, stripping, messages=messages, continue_final_message=True).text == "hia</think>b"
    changing = "{{ messages[0].content }}{{ messages[-1].content.split('</think>')[-1] }}"
    message = "changes the final message"
    refused(folder, changing, message, messages=messages, continue_final_message=True)


def test_generation_prompt(folder: Path) -> None:
    assert prompt(folder, LOOP_AND_PROMPT).text == "[user]hi<end>[assistant]<think>"
    assert prompt(folder, LOOP_AND_PROMPT, add_generation_prompt=False).text == "[user]hi<end>"


def test_template_variables(folder: Path) -> None:
    template = (
        "{{ messages[0].content }}: {{ thinking }}/{{ enable_thinking }}/{{ reasoning_effort }}/{{ other }}"
    )
    for fields, said in (
        ({}, "///"),
        ({"reasoning_effort": "none"}, "False/False/none/"),
        ({"reasoning_effort": "high"}, "True/True/high/"),
        (
            {"reasoning_effort": "high", "chat_template_kwargs": {"thinking": False, "other": 1}},
            "False/True/high/1",
        ),
    ):
        assert prompt(folder, template, **fields).text == f"hi: {said}"


@pytest.mark.parametrize(
    ("parser", "final", "inside"),
    [
        (None, None, None),
        ("deepseek-r1", None, True),
        ("deepseek-v3", None, True),  # the template opens it
        ("deepseek-v3", "so", False),
        ("deepseek-v3", "<think>so", True),
        ("deepseek-r1", "<think>so</think>I", False),
        ("deepseek-r1", "so", True),
    ],
)
def test_what_an_answer_begins_with(
    folder: Path, parser: str | None, final: str | None, inside: bool | None
) -> None:
    fields: dict[str, Any] = {}
    if final is not None:
        fields = {"messages": [USER, {"role": "assistant", "content": final}], "continue_final_message": True}
    options = {"reasoning_parser": parser}
    assert prompt(folder, LOOP_AND_PROMPT, options, **fields).answer_format.reasoning is inside
    assert prompt(folder, LOOP_AND_PROMPT, options, separate_reasoning=False).answer_format.reasoning is None
    made = prompt(folder, LOOP_AND_PROMPT, options, stream_reasoning=False)
    assert made.answer_format.stream_reasoning is False


THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": True}}
NOT_THINKING: dict[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}


@pytest.mark.parametrize(
    ("template", "fields", "inside", "opens"),
    [
        (GLM45, {}, False, True),
        (GLM45, NOT_THINKING, False, False),
        (GLM45, {"reasoning_effort": "none"}, False, False),
        (GLM47, {}, True, False),
        (GLM47, THINKING, True, False),
        (GLM47, NOT_THINKING, False, False),
        (QWEN3, {}, False, True),
        (QWEN3, NOT_THINKING, False, False),
        (QWEN3_CODER, {}, True, False),
        (QWEN3_CODER, NOT_THINKING, False, False),
    ],
)
def test_thinking_as_the_template_has_it(
    folder: Path, template: str, fields: dict[str, Any], inside: bool, opens: bool
) -> None:
    options = {
        "reasoning_parser": "glm45" if template in (GLM45, GLM47) else "qwen3",
        "tool_call_parser": "glm47",
    }
    found = prompt(folder, template, options, tools=[TOOL], **fields).answer_format
    assert (found.reasoning, found.opens, found.call_ends_reasoning) == (inside, opens, True)
    assert found.functions == {"look": {"type": "object"}}
    for more in ({"tool_choice": "required"}, {"regex": "a"}):
        made = prompt(folder, template, options, tools=[TOOL], **fields, **more)
        assert made.constraint is not None or "regex" in more
        assert made.answer_format.call_ends_reasoning is (made.constraint is None)
        if "regex" not in more:
            assert ("THOUGHT" in made.constraint.text) is (inside or opens)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, "structural_tag"),
        ({"tool_choice": "required"}, "lark"),
        ({"tool_choice": "none"}, None),
        ({"tools": [TOOL]}, None),
        ({"regex": "a"}, None),  # the request's own, in which there are no calls
        ({"regex": "a", "chat_template_kwargs": {"thinking": True}}, "regex"),
    ],
)
def test_strict_functions_are_held_to_their_schemas(
    folder: Path, fields: dict[str, Any], kind: str | None
) -> None:
    strict = {"type": "function", "function": {**TOOL["function"], "strict": True}}  # type: ignore[dict-item]
    template = LOOP % DEEPSEEK + "{{ tools }}{% if thinking %}<think>{% endif %}"
    options = {"reasoning_parser": "deepseek-v3"}
    got = prompt(folder, template, options, **{"tools": [TOOL, strict], **fields})
    assert (got.constraint and got.constraint.kind) == kind


def test_reasoning_is_free_of_the_constraint(folder: Path) -> None:
    options, asked = {"reasoning_parser": "deepseek-v3"}, {"regex": "a|b"}
    made = prompt(folder, LOOP_AND_PROMPT, options, **asked)
    assert made.constraint == Constraint("regex", "a|b", after="</think>")
    for fields in ({}, {**asked, "separate_reasoning": False}, {**asked, "add_generation_prompt": False}):
        assert prompt(folder, LOOP_AND_PROMPT, options, **fields).constraint is None  # as it was asked


keys = st.sampled_from(["role", "content", "tool_calls", "function", "name", "arguments", "type"])
messages = st.lists(st.dictionaries(keys, json_values, max_size=4), max_size=3)


@settings(deadline=None)  # the tokenizer is read once
@given(messages, st.booleans())
def test_any_messages_are_a_prompt_or_a_clear_error(folder: Path, messages: list[Any], goes_on: bool) -> None:
    made = Tokenizer.from_folder(folder)
    body = json.dumps({"messages": messages, "continue_final_message": goes_on}).encode()
    try:
        assert isinstance(render(parse(body, ChatRequest), made), str)
    except ApiError as error:
        status = error.status
    else:
        return
    assert status == 400
