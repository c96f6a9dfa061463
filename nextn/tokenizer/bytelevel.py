"""The bytes behind each entry of a byte-level BPE vocabulary.

Such a vocabulary spells every byte as one printable character (0x20 is "Ġ", 0x0A is "Ċ"). So the text of a
token sequence is the UTF-8 decoding of its tokens' bytes joined: no token changes the text of an earlier one.
That makes exact text from a stream of tokens simple.
"""

from __future__ import annotations

from collections.abc import Collection

import tokenizers


def byte_of_char() -> dict[str, int]:
    """GPT-2's table: a printable Latin-1 byte stands for itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    chars = [*printable, *range(0x100, 0x100 + len(others))]
    return {chr(c): b for c, b in zip(chars, [*printable, *others], strict=True)}


BYTE_OF_CHAR = byte_of_char()


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes, looked up in the vocabulary on first use.

    An added token that is not spelled in the byte alphabet ("<｜User｜>") is its own UTF-8. Ids outside the
    vocabulary have no bytes. With `skip_special_tokens`, special tokens that are not in `shown` have none
    either.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        skip_special_tokens: bool,
        shown: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._backend = backend
        if skip_special_tokens:
            for token_id, token in backend.get_added_tokens_decoder().items():
                if token.special and token.content not in shown:
                    self[token_id] = b""

    def __missing__(self, token_id: int) -> bytes:
        token: str | None = self._backend.id_to_token(token_id)
        if token is None:
            data = b""
        elif all(c in BYTE_OF_CHAR for c in token):
            data = bytes([BYTE_OF_CHAR[c] for c in token])
        else:
            data = token.encode()
        self[token_id] = data
        return data


class TokenNames(dict[int, str]):
    """Token id -> its name in answers, different for every token. It is the token's text; "bytes:\\xe2\\x82"
    where the bytes are not UTF-8 by themselves; "token_id:4099" where the tokenizer has no such id."""

    def __init__(self, token_bytes: TokenBytes) -> None:
        super().__init__()
        self._bytes = token_bytes

    def __missing__(self, token_id: int) -> str:
        data = self._bytes[token_id]
        try:
            name = data.decode() or f"token_id:{token_id}"
        except UnicodeDecodeError:
            name = "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
        self[token_id] = name
        return name
