"""The bytes of each token of a vocabulary (`nextn.tokenizer.spelling`).

The text of a token sequence is the UTF-8 decoding of its tokens' joined bytes. No token changes the text of
an earlier one, so a stream of tokens can be turned into exact text.
"""

from __future__ import annotations

from collections.abc import Collection

import tokenizers

from nextn.tokenizer.spelling import byte_level, spelling_of


class TokenBytes(dict[int, bytes]):
    """Token id -> bytes, looked up in the vocabulary on first use.

    Ids outside the vocabulary have no bytes. With `skip_special_tokens`, special tokens that are not in
    `shown` have none either.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        skip_special_tokens: bool,
        shown: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._backend = backend
        self._bytes_of = spelling_of(backend) or byte_level
        if skip_special_tokens:
            for token_id, token in backend.get_added_tokens_decoder().items():
                if token.special and token.content not in shown:
                    self[token_id] = b""

    def __missing__(self, token_id: int) -> bytes:
        token: str | None = self._backend.id_to_token(token_id)
        data = b"" if token is None else self._bytes_of(token)
        self[token_id] = data
        return data


class TokenNames(dict[int, str]):
    """Token id -> its name in answers, different for every token. The name is the token's text. It is
    "bytes:\\xe2\\x82" if the bytes alone are not UTF-8, and "token_id:4099" if the tokenizer has no such
    id."""

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
