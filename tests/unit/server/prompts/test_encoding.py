"""Long texts: the tokens are those of the whole, whatever is cut, and what cannot fit is refused unread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from nextn.config import model_folder
from nextn.server.prompts.encoding import LONG_TEXT, Encoder, batches
from nextn.server.protocol.errors import ApiError
from nextn.tokenizer import Tokenizer
from nextn.tokenizer.tokenizer import PIECE

ENGLISH = "The quick brown fox, he said, jumps over 12 lazy dogs.\n"


@pytest.fixture(scope="module")
def tiny() -> Tokenizer:
    return Tokenizer.from_folder(Path(model_folder("nextn-tiny")))


@pytest.mark.parametrize("special", [True, False])
async def test_the_tokens_are_those_of_the_whole(tiny: Tokenizer, special: bool) -> None:
    texts = ["short", ENGLISH * 4000, "", "a" * (PIECE + 5), ENGLISH * 500, "x" * 10]
    assert await Encoder(tiny).encode(texts, special) == tiny.encode_batch(texts, special)
    assert await Encoder(tiny).encode([], special) == []


def test_batches() -> None:
    long, half = "a" * (PIECE + 1), "b" * (PIECE // 2)
    given = ["x", long, half, half, half, "y", long]
    assert list(batches(iter(given))) == [["x"], [long], [half, half], [half, "y"], [long]]


class Unread:
    """A tokenizer that says of every text that it is too long, and encodes none."""

    def exceeds(self, texts: Sequence[str], most: int) -> bool:
        return True


async def test_what_cannot_fit_is_not_tokenized() -> None:
    encoder = Encoder(Unread())  # type: ignore[arg-type]
    with pytest.raises(ApiError, match=r"has 2000000 characters, more than 10 tokens; .* is 10") as error:
        await encoder.encode(["a" * 2_000_000], most=10)
    assert (error.value.status, error.value.code) == (400, "context_length_exceeded")


async def test_tokenizing_ends_when_there_are_too_many(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, pieces, encode = ENGLISH * 20_000, list[str](), tiny.encode

    def counted(piece: str, add_special_tokens: bool = True) -> list[int]:
        pieces.append(piece)
        return encode(piece, add_special_tokens)

    monkeypatch.setattr(tiny, "encode", counted)
    with pytest.raises(ApiError, match="more than 100000 tokens"):
        await Encoder(tiny).encode([text], most=100_000)
    assert sum(map(len, pieces)) < len(text) / 3


async def test_a_long_text_is_tokenized_in_pieces_beside_the_loop(
    tiny: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No piece is much longer than it has to be, and the loop's thread does none of it."""
    threads, pieces, encode, batch = set[int](), list[int](), tiny.encode, tiny.encode_batch

    def noted(piece: str, add_special_tokens: bool = True) -> list[int]:
        threads.add(threading.get_ident())
        pieces.append(len(piece))
        return encode(piece, add_special_tokens)

    def noted_batch(texts: list[str], add_special_tokens: bool = True) -> list[list[int]]:
        threads.add(threading.get_ident())
        return batch(texts, add_special_tokens)

    monkeypatch.setattr(tiny, "encode", noted)
    monkeypatch.setattr(tiny, "encode_batch", noted_batch)
    texts = [ENGLISH * (3 * PIECE // len(ENGLISH)), ENGLISH * (LONG_TEXT // len(ENGLISH) + 1)]
    await Encoder(tiny).encode(texts)
    assert threads
    assert threading.get_ident() not in threads
    assert len(pieces) >= 3
    assert max(pieces) <= PIECE + len(ENGLISH)


async def test_together(tiny: Tokenizer) -> None:
    texts = (ENGLISH * 100 for _ in iter(int, 1))  # for ever
    with pytest.raises(ApiError, match="together have more than 100000 tokens; 100000 are allowed"):
        await Encoder(tiny).encode(texts, most_together=100_000)


async def test_half_of_a_pair(tiny: Tokenizer) -> None:
    for text in ("a\ud800", "a\ud800" + "a" * LONG_TEXT, "a\ud800" + "a" * PIECE):
        with pytest.raises(ApiError, match="at character 1"):
            await Encoder(tiny).encode([text], most=10**9)
    text = ENGLISH * 4000 + "\ud800"
    with pytest.raises(ApiError, match=f"at character {len(text) - 1}"):
        await Encoder(tiny).encode([text])
