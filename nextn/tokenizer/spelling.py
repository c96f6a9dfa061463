"""Converts a vocabulary's tokens to bytes, for byte-level BPE and SentencePiece's BPE (Llama 2, Mistral).

A byte-level vocabulary writes every byte as one printable character (0x20 is "Ġ", 0x0A is "Ċ").
SentencePiece's writes a space as "▁", and a byte that is part of no other token as "<0x0A>". In both, a
token's bytes do not depend on the tokens before it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import tokenizers
from tokenizers import decoders

from nextn.tokenizer.pipeline import flat

SPACE = "▁"
BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# The parts of SentencePiece's decoder. Strip removes the space at the beginning of a text. nextn keeps this
# space, because the text of an answer continues its prompt.
PARTS = (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"])


def byte_of_char() -> dict[str, int]:
    """GPT-2's table, character -> byte. A printable Latin-1 byte is its own character. The others are the
    characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    chars = [*printable, *range(0x100, 0x100 + len(others))]
    return {chr(c): b for c, b in zip(chars, [*printable, *others], strict=True)}


BYTE_OF_CHAR = byte_of_char()


def spelling_of(backend: tokenizers.Tokenizer) -> Callable[[str], bytes] | None:
    """Returns a function from a token to its bytes; None if the vocabulary is of neither kind."""
    if isinstance(backend.decoder, decoders.ByteLevel):
        return byte_level
    parts = flat(backend.decoder, "decoders")
    if [part["type"] for part in parts] in PARTS and parts[0]["pattern"] == {"String": SPACE}:
        return sentencepiece
    return None


def byte_level(token: str) -> bytes:
    """Returns a token's bytes. An added token with characters outside the byte alphabet ("<｜User｜>") is its
    own UTF-8."""
    if all(c in BYTE_OF_CHAR for c in token):
        return bytes([BYTE_OF_CHAR[c] for c in token])
    return token.encode()


def sentencepiece(token: str) -> bytes:
    """
    >>> sentencepiece("▁the"), sentencepiece("<0x0A>")
    (b' the', b'\\n')
    """
    byte = BYTE.fullmatch(token)
    return bytes([int(byte[1], 16)]) if byte else token.replace(SPACE, " ").encode()
