"""A text in pieces has the tokens of the whole; and where that is not certain it is not cut."""

from __future__ import annotations

from typing import Any

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers

from nextn.tokenizer.cuts import AFTER, BEFORE, CLASSES, GPT2, WORDS, cut_places, next_cut, pieces

DEEPSEEK, LLAMA, QWEN = sorted(WORDS - {GPT2}, key=lambda words: ("'s" in words, r"\p{N}{1,3}" not in words))
CORPUS = [
    "def mean(values):\n    return sum(values) / len(values)\n\n\nclass Größe:  # it's 1234567\n",
    "我们的模型，很快。他说：“好！”\r\nDon't you'LL they're I'm\t\tx=1 <b>a</b> a\u0301b  \n \n c",
]
# What stands beside cuts, and what expressions look for.
CHARACTERS = "ab中的é\u0301 \n\r\t'.,(<>_1٣,，。“=\u3000\xa0😀あ"
SOME = st.sampled_from([*CHARACTERS, "'s", "'LL", "  ", "<think>", "<|x|>"])
TEXTS = st.lists(SOME, max_size=40).map("".join) | st.text(st.characters(exclude_categories=["Cs"]))


def split(expression: str, **options: Any) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(expression), **{"behavior": "isolated", **options})


def byte_level(use_regex: bool = False, prefix: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=prefix, use_regex=use_regex)


def made(*parts: pre_tokenizers.PreTokenizer, **added: Any) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(list(parts))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_tokens([AddedToken("<think>", **{"normalized": False, **added})])
    tokenizer.add_special_tokens([AddedToken("<|x|>", normalized=False, single_word=True)])
    return tokenizer


KINDS = {
    "DeepSeek": made(*[split(words) for words in (*sorted(CLASSES), DEEPSEEK)], byte_level()),
    "GPT-2": made(byte_level(use_regex=True)),
    "Llama": made(split(LLAMA), byte_level()),
    "Qwen": made(split(QWEN), byte_level()),
}


def ids(tokenizer: tokenizers.Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


@pytest.mark.parametrize("kind", KINDS)
@given(text=TEXTS)
@settings(derandomize=True, max_examples=120)
def test_pieces_have_the_tokens_of_the_whole(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    places = cut_places(tokenizer)
    assert places is not None
    parts = list(pieces(text, places, 1))
    assert "".join(parts) == text
    assert len(parts) <= 1 + len(places.findall(text))
    assert [token for part in parts for token in ids(tokenizer, part)] == ids(tokenizer, text)


@pytest.mark.parametrize("kind", KINDS)
def test_every_cut(kind: str) -> None:
    """Each pair of characters, in surroundings that join with them where anything does."""
    tokenizer = KINDS[kind]
    places = cut_places(tokenizer)
    assert places is not None
    letters = [char for char in BEFORE if char != "-"]
    cuts = 0
    for letter in letters:
        for char in AFTER:
            text = f" (x' {letter}{char}'s \n a"
            at = next_cut(text, places, 5)
            if at == 6:
                cuts += 1
                assert ids(tokenizer, text[:at]) + ids(tokenizer, text[at:]) == ids(tokenizer, text)
    assert cuts == len(letters) * (len(AFTER) - len("<>|"))


def test_a_cut_beyond_the_first_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.tokenizer.cuts.WINDOW", 7)
    places = cut_places(KINDS["DeepSeek"])
    assert places is not None
    for length in range(1, 30):
        text = "a" * length + " b"
        assert list(pieces(text, places, 1)) == ["a" * length, " b"]
    assert list(pieces("a" * 50, places, 1)) == ["a" * 50]


UNKNOWN = {
    "no splits": made(byte_level()),
    "classes alone": made(split(r"\p{N}"), byte_level()),
    "another expression": made(split(r"\w+|\W+"), byte_level()),
    "the spaces removed": made(split(DEEPSEEK, behavior="removed"), byte_level()),
    "inverted": made(split(DEEPSEEK, invert=True), byte_level()),
    "a space before each text": made(split(DEEPSEEK), byte_level(prefix=True)),
    "whitespace": made(pre_tokenizers.Whitespace(), byte_level(use_regex=True)),
    "an added token that takes in spaces": made(split(DEEPSEEK), byte_level(), rstrip=True),
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_others_are_not_cut(kind: str) -> None:
    assert cut_places(UNKNOWN[kind]) is None
    assert list(pieces("a b c", None, 1)) == ["a b c"]


def test_a_normalizer_is_not_cut() -> None:
    tokenizer = made(split(DEEPSEEK), byte_level())
    tokenizer.normalizer = normalizers.Sequence([])  # DeepSeek's
    assert cut_places(tokenizer) is not None
    tokenizer.normalizer = normalizers.NFC()
    assert cut_places(tokenizer) is None
