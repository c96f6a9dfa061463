"""A text has at least as many tokens as is said of it without tokenizing it."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from nextn.tokenizer import Tokenizer
from nextn.tokenizer.length import Length, byte_weights

PARTS = ["def ", "mean", "values", "        ", "<think>", "<｜User｜>", "\n\n", "é", "日本語", "🙂", "١", "x"]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=30).map("".join) | st.text(
    st.characters(exclude_categories=["Cs"])
)


def most_exceeded(length: Length, text: str) -> int:
    """The largest count that it is said to exceed, -1: none."""
    return max((most for most in range(len(text.encode()) + 1) if length.exceeds([text], most)), default=-1)


@given(text=TEXTS)
@settings(derandomize=True, max_examples=100)
def test_never_more_than_there_are(tokenizer: Tokenizer, text: str) -> None:
    count = len(tokenizer.encode(text, add_special_tokens=False))
    assert not tokenizer.exceeds([text], count)
    assert not tokenizer.exceeds([text[:3], text[3:]], count + 4)


def test_of_a_long_text(tokenizer: Tokenizer) -> None:
    """A fraction of what there are; of a byte that no merge has, all."""
    text = "def mean(values):\n" * 100
    count = len(tokenizer.encode(text, add_special_tokens=False))
    assert tokenizer.exceeds([text], count // 20)
    assert tokenizer.exceeds([text[:900], text[900:]], count // 20)
    assert tokenizer.exceeds(["\x00" * 100], 99)
    assert not tokenizer.exceeds(["\x00" * 100], 100)
    assert not tokenizer.exceeds([], 0)


def test_across_what_is_looked_at_at_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.tokenizer.length.CHUNK", 3)
    assert tokenizer.exceeds(["\x00" * 10], 9)
    assert not tokenizer.exceeds(["\x00" * 10], 10)


def test_half_of_a_pair(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="at character 1"):
        tokenizer.exceeds(["fine", "a\ud800"], 100)


def backend(vocabulary: dict[str, int], **options: Any) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=[("a", "a")], **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return made


LETTERS = {"a": 0, "aa": 1, "b": 2, "Ġ": 3}


def test_weights() -> None:
    made = backend(LETTERS)
    weights = byte_weights(made)
    assert {chr(i): weight for i, weight in enumerate(weights) if weight} == {"a": 0.5, "b": 1.0, " ": 1.0}
    made.add_tokens([AddedToken("bbb", normalized=False)])
    assert byte_weights(made)[ord("b")] == 1 / 3
    assert most_exceeded(Length(byte_weights(made)), "ab" * 6) == 4  # 3 and 2 tokens' worth
    made.add_tokens([AddedToken("<x>", normalized=False, lstrip=True)])
    weights = byte_weights(made)
    assert (weights[ord(" ")], weights[ord("a")]) == (0.0, 0.5)


def test_nothing_is_said_where_text_may_vanish() -> None:
    normalized, without = backend(LETTERS), backend(LETTERS)
    normalized.normalizer = normalizers.Replace("a", "")
    without.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), without.pre_tokenizer])
    words = tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0, "?": 1}, unk_token="?"))
    for each in (normalized, without, words):
        assert set(byte_weights(each)) == {0.0}
        assert not Length(byte_weights(each)).exceeds(["a" * 100], 0)
