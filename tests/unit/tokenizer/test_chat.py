"""Chat templates: what transformers renders, parts, names, refusals."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nextn.tokenizer import ChatTemplate, Tokenizer

USER: list[dict[str, object]] = [{"role": "user", "content": "hi"}]


def render(template: str, messages: Any = USER, /, **extra: Any) -> str:
    return ChatTemplate({"default": template}, {"bos_token": "<s>"}).render(messages, **extra)


def test_prompt_has_one_bos(tokenizer: Tokenizer) -> None:
    messages: list[dict[str, object]] = [{"role": "system", "content": "Be kind."}, *USER]
    text = tokenizer.render_chat(messages)
    assert text == "<｜begin▁of▁sentence｜>Be kind.\n<｜User｜>hi<think>"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert ids[0] == 0
    assert 0 not in ids[1:]
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert not tokenizer.render_chat(messages, add_generation_prompt=False).endswith("<think>")


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    template = """{{ bos_token }}
    {% for m in messages %}
        {% if loop.index > 1 %}
            {% break %}
        {% endif %}
{{ m.content }}
    {% endfor %}
{% generation %}{% set inner = 1 %}end{% endgeneration %}{{ inner }}"""
    assert render(template, USER * 2) == "<s>\nhi\nend"


def test_tojson_keeps_order_and_characters() -> None:
    out = render("{{ x | tojson }}|{{ x | tojson(indent=1) }}", x={"b": "<é>", "a": [1]})
    assert out == '{"b": "<é>", "a": [1]}|' + json.dumps({"b": "<é>", "a": [1]}, ensure_ascii=False, indent=1)


def test_strftime_now() -> None:
    before = datetime.now().strftime("%d %b %Y")
    out = render("{{ strftime_now('%d %b %Y') }}")
    assert out in (before, datetime.now().strftime("%d %b %Y"))


def test_tools_and_extra_reach_the_template() -> None:
    template = "{% if tools %}{{ tools[0].name }}{% endif %}{{ thinking }}{{ tools is none }}"
    assert render(template, tools=[{"name": "f"}], thinking=True) == "fTrueFalse"
    assert render(template) == "True"


def test_named_templates() -> None:
    chat = ChatTemplate({"default": "plain", "tool_use": "tools"}, {})
    assert chat.render(USER) == "plain"
    assert chat.render(USER, tools=[{}]) == "tools"
    assert ChatTemplate({"default": "plain"}, {}).render(USER, tools=[{}]) == "plain"
    with pytest.raises(ValueError, match="no chat template is named default; there are rag, tool_use"):
        ChatTemplate({"tool_use": "x", "rag": "y"}, {}).render(USER)


def test_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert render("{{ messages[0].content }}", [{"role": "user", "content": parts}]) == "a\nb"
    assert render("{{ messages[0].content }}", [{"role": "user", "content": []}]) == ""
    assert render("{{ messages[0].content is none }}", [{"role": "assistant", "content": None}]) == "True"


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "messages is empty"),
        (["hi"], r"messages\[0\] must be an object with a role"),
        ([{"content": "hi"}], r"messages\[0\] must be an object with a role"),
        ([*USER, {"role": 1, "content": ""}], r"messages\[1\] must be an object with a role"),
        ([{"role": "user", "content": 5}], r"messages\[0\].content must be a string or a list"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\] is of type 'image_url'"),
        ([{"role": "user", "content": ["x"]}], r"content\[0\] is of type 'str'"),
        ([{"role": "user", "content": [{"type": "text"}]}], r"content\[0\].text must be a string"),
    ],
)
def test_malformed_messages(messages: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        render("{{ messages[0].content }}", messages)


def test_the_template_refuses(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="unknown role critic"):
        tokenizer.render_chat([{"role": "critic", "content": "x"}])


@pytest.mark.parametrize(
    "template",
    [
        "{{ 'a' + messages[0].missing }}",
        "{{ messages[0].missing.deeper }}",
        "{{ 'a' + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
    ],
)
def test_failing_and_hostile_templates(template: str) -> None:
    with pytest.raises(ValueError, match=r"the chat template refused the messages: \S"):
        render(template)


def test_messages_are_not_changed() -> None:
    parts = [{"type": "text", "text": "a"}]
    messages: list[dict[str, object]] = [{"role": "user", "content": parts}]
    render("{{ messages[0].content }}", messages)
    assert messages == [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    with pytest.raises(ValueError, match="messages cannot be given"):
        render("", USER, messages=[])


def test_jinja_file_comes_first(make_folder: Any) -> None:
    path = make_folder()
    (path / "chat_template.jinja").write_text("{{ messages[0].content }} ♥\n", encoding="utf-8")
    assert Tokenizer.from_folder(path).render_chat(USER) == "hi ♥"
    (path / "chat_template.jinja").write_text("{% if %}")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: the chat template is not valid"):
        Tokenizer.from_folder(path)


def test_named_templates_of_the_config(make_folder: Any) -> None:
    config = {"chat_template": [{"name": "default", "template": "A"}, {"name": "tool_use", "template": "B"}]}
    tok = Tokenizer.from_folder(make_folder(config=config))
    assert (tok.render_chat(USER), tok.render_chat(USER, tools=[{}])) == ("A", "B")


def test_no_template(make_folder: Any) -> None:
    tok = Tokenizer.from_folder(make_folder(config={}))
    with pytest.raises(ValueError, match="no chat template; send a prompt to /v1/completions"):
        tok.render_chat(USER)


@pytest.mark.parametrize(
    ("sources", "takes"),
    [
        ({"default": "{% for tool in tools %}{{ tool.function.name }}{% endfor %}"}, True),
        ({"default": "{{ messages[0].tool_calls }}"}, False),
        ({"default": "{% set tools = [] %}{{ tools }}"}, False),
        ({"default": "A", "tool_use": "B"}, True),
    ],
)
def test_templates_that_show_tools(sources: dict[str, str], takes: bool) -> None:
    assert ChatTemplate(sources, {}).takes_tools is takes


def test_a_file_in_place_of_the_folders_template(make_folder: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    other.write_text("other: {{ messages[0].content }}")
    tok = Tokenizer.from_folder(make_folder(), other)
    assert tok.render_chat(USER) == "other: hi"
    with pytest.raises(ValueError, match=r"none\.jinja cannot be read"):
        Tokenizer.from_folder(make_folder(), tmp_path / "none.jinja")
