"""Nothing in a chat's messages is dropped silently: the prompt has it, or a 400 names it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chat_templates import GLM47, QWEN3
from support.deepseek_template import DEEPSEEK_V3, DEEPSEEK_V3_FIRST

from nextn.config import EMBEDDED, model_folder
from nextn.server.prompts.chat import render
from nextn.server.protocol.body import parse
from nextn.server.protocol.errors import ApiError
from nextn.server.protocol.openai import ChatRequest
from nextn.tokenizer.tokenizer import Tokenizer

CHATML = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{% endfor %}"
NAMES = "{% for m in messages %}{{ m.role }} {{ m.name }}: {{ m.content | tojson(true) }}{% endfor %}"
TEMPLATES = {
    "embedded": None,
    "v3": DEEPSEEK_V3,
    "first v3": DEEPSEEK_V3_FIRST,
    "chatml": CHATML,
    "names": NAMES,
    "glm": GLM47,
    "qwen": QWEN3,
}
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": '{"at": "sea"}'}}
CALLS = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "name": "look", "content": "wet"}


@cache
def tokenizer(name: str) -> Tokenizer:
    source = TEMPLATES[name]
    if source is None:
        return Tokenizer.from_folder(model_folder(EMBEDDED))
    with TemporaryDirectory() as folder:
        file = Path(folder) / "chat.jinja"
        file.write_text(source, encoding="utf-8")
        return Tokenizer.from_folder(model_folder(EMBEDDED), file)


def prompt(name: str, messages: list[Any]) -> str:
    return render(parse(json.dumps({"messages": messages}).encode(), ChatRequest), tokenizer(name))


def refusal(name: str, messages: list[Any]) -> tuple[str | None, str]:
    with pytest.raises(ApiError) as error:
        prompt(name, messages)
    assert error.value.status == 400
    return error.value.param, str(error.value)


text = st.text(st.characters(codec="utf-8", exclude_characters="<"), max_size=12)
contents = st.one_of(text, st.none(), st.lists(text.map(lambda t: {"type": "text", "text": t}), max_size=3))
calls = st.lists(
    st.tuples(text, st.one_of(text, st.dictionaries(text, text, max_size=2).map(json.dumps))).map(
        lambda f: {"type": "function", "function": {"name": f[0], "arguments": f[1]}}
    ),
    max_size=2,
)
roles = st.sampled_from(["system", "developer", "user", "assistant", "tool", "wizard", "content"])
messages = st.lists(
    st.fixed_dictionaries(
        {"role": roles, "content": contents},
        optional={
            "tool_calls": calls,
            "name": text,
            "tool_call_id": text,
            "reasoning_content": text,
            "said": text,
        },
    ),
    max_size=4,
)


def pieces(message: dict[str, Any]) -> list[str]:
    """What the model must see of a message."""
    content = message["content"]
    found = [part["text"] for part in content] if isinstance(content, list) else [content or ""]
    found += [message.get("said", ""), message.get("name", "") if message["role"] != "tool" else ""]
    for call in message.get("tool_calls", []):
        found += [call["function"]["name"], call["function"]["arguments"]]
    return found


@pytest.mark.parametrize("name", ["embedded", "v3", "first v3", "chatml"])
@given(messages)
@settings(deadline=None)
def test_every_text_is_in_the_prompt_or_the_answer_is_a_400(
    name: str, messages: list[dict[str, Any]]
) -> None:
    try:
        shown = prompt(name, messages)
    except ApiError as error:
        status = error.status
    else:
        status = 200
    assert status in (200, 400)
    for message in messages if status == 200 else []:
        assert message["role"] not in ("wizard", "content")
        for piece in pieces(message):
            assert piece.strip() in shown, (piece, shown)


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_an_unknown_role(name: str) -> None:
    for role in ("wizard", "User", ""):
        param, message = refusal(name, [USER, {"role": role, "content": "abracadabra"}])
        assert param == "messages[1].role"
        assert (
            message == f"messages[1].role is {role!r}; it must be system, developer, user, assistant or tool"
        )


def test_a_role_of_the_template(tmp_path: Path) -> None:
    file = tmp_path / "chat.jinja"
    file.write_text(
        "{% for m in messages if m.role in ['user', 'wizard'] %}{{ m.content }}{{ m.wand }}{% endfor %}"
    )
    body = {"messages": [{"role": "wizard", "content": "abra", "wand": "oak"}]}
    made = Tokenizer.from_folder(model_folder(EMBEDDED), file)
    assert render(parse(json.dumps(body).encode(), ChatRequest), made) == "abraoak"


@pytest.mark.parametrize(
    ("name", "message", "field"),
    [
        ("embedded", RESULT, "content"),
        ("embedded", CALLS, "tool_calls[0].function.name"),
        ("chatml", CALLS, "tool_calls[0].function.name"),
        ("first v3", {**CALLS, "content": "I look."}, "tool_calls[0].function.name"),
        ("embedded", {**USER, "name": "Ann"}, "name"),
        ("v3", {**USER, "name": "Ann"}, "name"),
    ],
)
def test_what_the_template_does_not_show(name: str, message: dict[str, Any], field: str) -> None:
    param, said = refusal(name, [USER, message])
    assert param == f"messages[1].{field}"
    assert said == (
        f"messages[1].{field}: the chat template does not show it to the model in a message of role "
        f"{message['role']!r}"
    )


@pytest.mark.parametrize(
    ("message", "field", "rule"),
    [
        ({"content": []}, "content", "is an empty list"),
        ({"content": {"text": "a"}}, "content", "must be a string or a list of text parts"),
        ({"content": ["a"]}, "content[0].type", "is of type 'a string'; only 'text' parts are supported"),
        ({"content": [{"type": "text"}]}, "content[0].text", "must be a string"),
        ({"content": [{"type": "input_text", "text": "a"}]}, "content[0].type", "only 'text' parts"),
        (
            {"content": [{"type": "image_url", "image_url": {"url": "data:,a"}}]},
            "content[0].type",
            "is of type 'image_url'; only 'text' parts are supported",
        ),
        ({"content": [{"type": "text", "text": "a", "say": "b"}]}, "content[0].say", "is not known"),
        ({"name": 5}, "name", "must be a string"),
        ({"tool_calls": [CALL]}, "tool_calls", "only an assistant's message can have tool_calls"),
        ({"tool_call_id": "c"}, "tool_call_id", "is not known; leave it out"),
        ({"reasoning_content": "hm"}, "reasoning_content", "is not known; leave it out"),
        ({"images": ["data:,a"]}, "images", "is not known; leave it out"),
        ({"role": "assistant", "reasoning_content": 5}, "reasoning_content", "must be a string"),
        ({"role": "assistant", "refusal": "No."}, "refusal", "is not known"),
        ({"role": "assistant", "function_call": {"name": "f"}}, "function_call", "is not known"),
        ({"role": "assistant", "audio": {"id": "a"}}, "audio", "is not known"),
        ({"role": "assistant", "prefix": True}, "prefix", "is not known"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]},
            "tool_calls[0].type",
            "it must be 'function'",
        ),
        (
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": [1]}}]},
            "tool_calls[0].function.arguments",
            "must be a string or an object, not a list",
        ),
    ],
    ids=str,
)
def test_fields(message: dict[str, Any], field: str, rule: str) -> None:
    param, said = refusal("v3", [USER, {**USER, **message}])
    assert param == f"messages[1].{field}"
    assert rule in said


def test_reasoning_of_an_earlier_answer() -> None:
    """Templates that know reasoning decide; DeepSeek's drop it, as in the content. Others cannot."""
    said = {"role": "assistant", "content": "ho", "reasoning_content": "hm"}
    assert prompt("v3", [USER, said]) == prompt(
        "v3", [USER, {"role": "assistant", "content": "<think>hm</think>ho"}]
    )
    param, message = refusal("embedded", [USER, said])
    assert (param, "does not support it" in message) == ("messages[1].reasoning_content", True)


def test_what_is_shown() -> None:
    shown = prompt("v3", [USER, {**CALLS, "content": "I look."}, RESULT])
    assert all(said in shown for said in ("I look.", "look\n", '{"at": "sea"}', "wet"))
    assert prompt("names", [{**USER, "name": "Ann"}]) == 'user Ann: "hi"'


def test_notes_of_clients_are_no_content() -> None:
    said = {
        "role": "assistant", "content": "ho", "id": "m1", "annotations": [{}], "refusal": None, "audio": None,
        "provider_specific_fields": {"a": 1}, "tool_calls": [], "function_call": None,
        "name": "", "prefix": False,
    }  # fmt: skip
    cached = {
        "role": "user",
        "content": [{"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}}],
    }
    assert prompt("embedded", [cached, said]) == prompt(
        "embedded", [USER, {"role": "assistant", "content": "ho"}]
    )
