"""A 400-entry byte-level BPE tokenizer of nextn-tiny's kind, trained here, in a checkpoint folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors, trainers

from nextn.tokenizer import Tokenizer

BOS, EOS, USER = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"
TEXT = '''def mean(values):
    """The mean of the values; ValueError when there are none."""
    if not values:
        raise ValueError("no values")
    total = 0.0
    for value in values:
        total += value
    return total / len(values)

# Grüße, naïve café, 日本語のテキスト, 🙂🙃 emoji, Ελληνικά, ١٢٣ and 1234567.
'''
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] }}\n"
    "{% elif message['role'] == 'user' %}<｜User｜>{{ message['content'] }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] }}{{ eos_token }}"
    "{% else %}{{ raise_exception('unknown role ' + message['role']) }}"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<think>{% endif %}"
)


def train() -> tokenizers.Tokenizer:
    tok = tokenizers.Tokenizer(models.BPE())
    splits = (r"\p{N}{1,3}", r"[^\r\n\p{L}\p{P}\p{S}]?\p{L}+| ?[\p{P}\p{S}]+[\r\n]*|\s+(?!\S)|\s+")
    tok.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *[pre_tokenizers.Split(Regex(s), behavior="isolated") for s in splits],
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=399,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in (BOS, EOS, USER)],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator([TEXT], trainer)
    tok.add_tokens([AddedToken("<think>", special=False, normalized=False)])
    tok.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 0)])
    return tok


CONFIG: dict[str, object] = {
    "add_bos_token": True,
    "bos_token": {"__type": "AddedToken", "content": BOS, "normalized": True},
    "eos_token": EOS,
    "pad_token": None,
    "clean_up_tokenization_spaces": False,
    "tokenizer_class": "PreTrainedTokenizerFast",
    "chat_template": CHAT_TEMPLATE,
}

MakeFolder = Callable[..., Path]


@pytest.fixture(scope="session")
def trained() -> str:
    return train().to_str()


@pytest.fixture
def make_folder(tmp_path: Path, trained: str) -> MakeFolder:
    """make_folder(edit=..., config=...): a folder; `edit` changes tokenizer.json's object in place."""

    def make(
        edit: Callable[[dict[str, object]], object] | None = None, config: dict[str, object] | None = CONFIG
    ) -> Path:
        data = json.loads(trained)
        if edit is not None:
            edit(data)
        (tmp_path / "tokenizer.json").write_text(json.dumps(data), encoding="utf-8")
        if config is not None:
            (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
        return tmp_path

    return make


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, trained: str) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    (path / "tokenizer.json").write_text(trained, encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder)
