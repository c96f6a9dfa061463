"""Reading a checkpoint's tokenizer, and text <-> ids against transformers on the same folder."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import processors

from nextn.tokenizer import Tokenizer

BOS, EOS, USER = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>"
UNICODE = st.text(st.characters(exclude_categories=["Cs"]))


def byte_level(data: dict[str, Any]) -> None:
    data["post_processor"] = {
        "type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True
    }  # fmt: skip


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert (tokenizer.bos_token, tokenizer.bos_token_id) == (BOS, 0)
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == (EOS, 1)
    assert tokenizer.special_tokens == {"bos_token": BOS, "eos_token": EOS}
    assert tokenizer.vocab_size == 400


def test_encode_adds_bos_once_and_only_when_asked(tokenizer: Tokenizer) -> None:
    plain = tokenizer.encode("def mean", add_special_tokens=False)
    assert tokenizer.encode("def mean") == [0, *plain]
    assert tokenizer.encode("") == [0]
    assert tokenizer.encode_batch(["def mean", ""]) == [[0, *plain], [0]]
    assert tokenizer.encode_batch([]) == []
    assert tokenizer.encode(f"{USER}x", add_special_tokens=False)[0] == 2


@given(UNICODE)
@settings(derandomize=True, deadline=None)
def test_text_comes_back(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids, skip_special_tokens=False) == BOS + text
    assert max(ids) < tokenizer.vocab_size


def test_decode_skips_special_tokens_and_unknown_ids(tokenizer: Tokenizer) -> None:
    ids = [0, *tokenizer.encode("a", False), 2, 123456, *tokenizer.encode("<think>b", False), 1]
    assert tokenizer.decode(ids) == "a<think>b"
    assert tokenizer.decode(ids, skip_special_tokens=False) == f"{BOS}a{USER}<think>b{EOS}"


@given(st.lists(st.integers(0, 420)), st.booleans())
@settings(derandomize=True, deadline=None)
@example([0, 399, 1, 2, 128, 410], True)  # "<think>" is an added token, but not a special one
def test_token_bytes_are_what_decode_decodes(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    table = tokenizer.token_bytes(skip)
    assert b"".join(table[i] for i in ids).decode(errors="replace") == tokenizer.decode(ids, skip)


@pytest.mark.parametrize("add", [True, False, None])
def test_bos_from_the_config(make_folder: Any, add: bool | None) -> None:
    """DeepSeek's files: tokenizer.json does not add BOS, add_bos_token does; and never two of them."""
    config = {"bos_token": BOS} | ({} if add is None else {"add_bos_token": add})
    for edit in (byte_level, lambda data: data.update(post_processor=None)):
        tok = Tokenizer.from_folder(make_folder(edit, config))
        assert tok.encode("def mean") == [0] * (add is True) + tok.encode("def mean", False)
    assert Tokenizer.from_folder(make_folder(None, config)).encode("")[:2] == [0]


def test_a_post_processor_that_adds_bos_stays(make_folder: Any) -> None:
    both = processors.TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=[(BOS, 0), (EOS, 1)])
    state = json.loads(both.__getstate__())
    path = make_folder(lambda data: data.update(post_processor=state))
    assert Tokenizer.from_folder(path).encode("") == [0, 1]


def test_without_config(make_folder: Any) -> None:
    tok = Tokenizer.from_folder(make_folder(config=None))
    assert tok.encode("x")[0] == 0
    assert (tok.bos_token, tok.bos_token_id, tok.eos_token_id) == (None, None, None)


def test_saved_truncation_and_padding_are_off(make_folder: Any, trained: str) -> None:
    backend = tokenizers.Tokenizer.from_str(trained)
    backend.enable_truncation(4)
    backend.enable_padding(length=8)
    saved = json.loads(backend.to_str())
    tok = Tokenizer.from_folder(make_folder(lambda data: data.update(saved)))
    assert tok.decode(tok.encode("def mean(values)")) == "def mean(values)"
    assert tok.encode("") == [0]


def test_lone_surrogate(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"'\\ud800' at character 1"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(ValueError, match="valid Unicode"):
        tokenizer.encode_batch(["fine", "\udc00"])


def test_no_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"{tmp_path} has no tokenizer.json"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("text", ['{"version": "1.0"', "{}", "[1]", ""])
def test_bad_tokenizer_json(tmp_path: Path, text: str) -> None:
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(ValueError, match=r"tokenizer\.json cannot be read as a tokenizer: "):
        Tokenizer.from_folder(tmp_path)


def test_decoder_of_another_kind(make_folder: Any) -> None:
    path = make_folder(lambda data: data.update(decoder={"type": "Fuse"}))
    with pytest.raises(
        ValueError, match=r"tokenizer\.json has the decoder Fuse; supported are byte-level BPE"
    ):
        Tokenizer.from_folder(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"bos_token": ', "cannot be read as JSON"),
        ("[]", "must hold a JSON object"),
        ('{"bos_token": {"text": "x"}}', "bos_token must be a string or an object"),
        ('{"eos_token": 1}', "eos_token must be a string or an object"),
        ('{"add_bos_token": true, "bos_token": "<s>"}', "adds the bos_token '<s>'"),
        ('{"chat_template": 3}', "chat_template must be a string or a list"),
        ('{"chat_template": [{"name": "default"}]}', "chat_template must be a string or a list"),
        ('{"chat_template": "{% if %}"}', "the chat template is not valid"),
        ('{"x": "\udcff"}', "cannot be read"),
        pytest.param("[" * 100_000, "cannot be read as JSON", id="deep"),
        pytest.param('{"x": ' + "9" * 5000 + "}", "cannot be read as JSON", id="digits"),
        pytest.param(
            json.dumps({"chat_template": "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}"}),
            "the chat template is not valid",
            id="deep template",
        ),
    ],
)
def test_bad_config(make_folder: Any, text: str, message: str) -> None:
    path = make_folder(config=None)
    (path / "tokenizer_config.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json:? .*{message}"):
        Tokenizer.from_folder(path)


def test_files_that_are_too_large(make_folder: Any) -> None:
    path = make_folder()
    for name in ("tokenizer_config.json", "tokenizer.json"):
        with (path / name).open("r+b") as file:
            file.truncate(600_000_000)  # a hole: it takes no room on the disk
        with pytest.raises(ValueError, match=rf"{name}.* 600000000 bytes; 500000000 is the most"):
            Tokenizer.from_folder(path)
        (path / name).write_text("{}")


def test_import_is_light() -> None:
    heavy = "{'torch', 'numpy', 'transformers', 'fastapi'}"
    code = f"import sys, nextn.tokenizer; assert not {heavy} & sys.modules.keys(), sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)
