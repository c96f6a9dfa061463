"""The same ids and the same text as transformers' AutoTokenizer on the same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.tokenizer import Tokenizer

pytestmark = pytest.mark.slow  # the import alone takes seconds

TEXTS = (
    "", " ", "def mean(values):\n    return 1234567\n", "  \n\n\tx", "Grüße 日本語 🙂", "<｜User｜>hi<think>",
    "<｜begin▁of▁sentence｜>", "e\u0301 \u200d \ufffd",
)  # fmt: skip
CHATS: tuple[list[dict[str, Any]], ...] = (
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be kind. "}, {"role": "user", "content": " x\n"}],
    [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": ""},
    ],
)
TEMPLATE = """{%- set ns = namespace(n=0) -%}
{{ bos_token }}
{% for message in messages %}
    {%- if loop.index0 == 7 %}{% break %}{% endif %}
    {% set ns.n = ns.n + 1 %}
    {{- '<' + message.role + '>' }} {{ message.content | trim }}
    {{ message | tojson }}{{ message | tojson(indent=2) }}
    {% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% endif %}

{% endfor %}
{{ ns.n }} {{ tools | tojson if tools else 'no tools' }} {{ missing }} {{ strftime_now('%Y') }}
{% if add_generation_prompt %}
<answer>
{% endif %}
"""


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def test_encode(tokenizer: Tokenizer, oracle: Any) -> None:
    for text in TEXTS:
        assert tokenizer.encode(text) == oracle(text)["input_ids"]
        assert tokenizer.encode(text, False) == oracle(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.encode_batch(TEXTS) == oracle(list(TEXTS))["input_ids"]
    assert tokenizer.vocab_size == len(oracle)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (oracle.bos_token_id, oracle.eos_token_id)


@given(st.lists(st.integers(0, 399), max_size=30), st.booleans())
@settings(derandomize=True, deadline=None)
def test_decode(tokenizer: Tokenizer, oracle: Any, ids: list[int], skip: bool) -> None:
    assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)


@pytest.mark.parametrize("jinja", [None, TEMPLATE], ids=["tiny", "many features"])
def test_chat(make_folder: Any, jinja: str | None) -> None:
    from transformers import AutoTokenizer

    path = make_folder()
    if jinja is not None:
        (path / "chat_template.jinja").write_text(jinja, encoding="utf-8")
    tokenizer = Tokenizer.from_folder(path)
    oracle: Any = AutoTokenizer.from_pretrained(path)
    tools: Any = [{"type": "function", "function": {"name": "f", "description": "é <b>"}}]
    for chat in CHATS:
        for kwargs in ({}, {"tools": tools, "missing": 3}):  # type: dict[str, Any]
            for add in (True, False):
                want = oracle.apply_chat_template(chat, add_generation_prompt=add, tokenize=False, **kwargs)
                assert tokenizer.render_chat(chat, add, **kwargs) == want
                ids = oracle.apply_chat_template(chat, add_generation_prompt=add, return_dict=False, **kwargs)
                assert tokenizer.encode(want, add_special_tokens=False) == ids


@pytest.mark.parametrize("add_bos", [True, False, None])
def test_bos_of_tokenizer_json(make_folder: Any, add_bos: bool | None) -> None:
    from transformers import AutoTokenizer

    config: dict[str, object] = {"bos_token": "<｜begin▁of▁sentence｜>", "add_bos_token": add_bos}
    path = make_folder(config=config | {"tokenizer_class": "PreTrainedTokenizerFast"})
    assert (
        Tokenizer.from_folder(path).encode("x y") == AutoTokenizer.from_pretrained(path)("x y")["input_ids"]
    )
