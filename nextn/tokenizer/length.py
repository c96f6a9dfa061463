"""Computes a lower bound on the number of tokens of a text without tokenizing it.

The weight of a byte is 1 / (length in bytes of the longest token that contains it). The bytes of one token
together weigh at most 1, so a text has at least as many tokens as its bytes weigh.
"""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers
from tokenizers import models

from nextn.tokenizer.pipeline import normalizers, pre_tokenizers
from nextn.tokenizer.spelling import BYTE_OF_CHAR

CHUNK = 2**18  # characters weighed at once; the GIL is released in between
WHITESPACE = frozenset("".join(char for char in map(chr, range(0x3001)) if char.isspace()).encode())
KEEP_ALL = ("ByteLevel", "Digits", "Split", "Punctuation")  # these keep all text, unless "Removed"


class Length:
    """Bounds the length of texts in tokens of one tokenizer. `weights`: of each of the 256 bytes."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.weights = weights
        self._groups = [
            (weight, bytes(byte for byte in range(256) if weights[byte] == weight))
            for weight in sorted(set(weights) - {0.0})
        ]

    def exceeds(self, texts: Sequence[str], most: int) -> bool:
        """True: the texts have more than `most` tokens together. False: they may have fewer. Raises
        UnicodeEncodeError for text that is not valid Unicode."""
        total = 0.0
        for text in texts:
            for begin in range(0, len(text), CHUNK):
                total += self._weight(text[begin : begin + CHUNK].encode())
                if total * (1 - 1e-9) > most:  # allows for rounding in the sum
                    return True
        return False

    def _weight(self, data: bytes) -> float:
        return sum(weight * (len(data) - len(data.translate(None, group))) for weight, group in self._groups)


def byte_weights(backend: tokenizers.Tokenizer) -> list[float]:
    """Returns the weight of each byte; 0 if a token may contain any number of it. All weights are 0 if the
    tokenizer may drop text, or make one token of any length."""
    drops = any(
        part["type"] not in KEEP_ALL or part.get("behavior") == "Removed" for part in pre_tokenizers(backend)
    )
    if drops or normalizers(backend) or not isinstance(backend.model, models.BPE):
        return [0.0] * 256
    vocabulary = backend.get_vocab(with_added_tokens=False)
    longest = [0] * 256
    left = set(BYTE_OF_CHAR)
    for spelled in sorted(vocabulary, key=len, reverse=True):
        if not left:
            break
        for char in left.intersection(spelled):
            longest[BYTE_OF_CHAR[char]] = len(spelled)
        left.difference_update(spelled)
    added = backend.get_added_tokens_decoder().values()
    for token in added:
        data = token.content.encode()
        for byte in set(data):
            longest[byte] = max(longest[byte], len(data))
    # If a byte is not a token by itself, it may be dropped, or be part of an unknown token.
    unbounded = {byte for char, byte in BYTE_OF_CHAR.items() if char not in vocabulary}
    if any(token.lstrip or token.rstrip for token in added):
        unbounded |= WHITESPACE
    return [0.0 if byte in unbounded else 1 / longest[byte] for byte in range(256)]
