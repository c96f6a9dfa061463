"""A checkpoint's tokenizer, made from tokenizer.json, tokenizer_config.json and the chat template.

It supports byte-level BPE (DeepSeek; also Llama 3, Qwen and GLM) and SentencePiece's BPE (Llama 2). In both,
a token's bytes never depend on its neighbours (`nextn.tokenizer.token_bytes`). A text is the joined bytes of
its tokens; there is no "clean-up" of spaces.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import tokenizers

from nextn.tokenizer import folder
from nextn.tokenizer.chat import ChatTemplate, Message
from nextn.tokenizer.cuts import cut_places, pieces
from nextn.tokenizer.length import Length, byte_weights
from nextn.tokenizer.token_bytes import TokenBytes, TokenNames

PIECE = 2**16  # characters; a piece takes about 10 MB during tokenization


class Tokenizer:
    """Converts text to token ids and back, and chat messages to prompts. `from_folder` makes it."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special_tokens: Mapping[str, str],
        chat_template: ChatTemplate | None,
    ) -> None:
        self._backend = backend
        self._bytes: dict[tuple[bool, frozenset[str]], TokenBytes] = {}
        self.token_names = TokenNames(self.token_bytes(skip_special_tokens=False))
        self.special_tokens = dict(special_tokens)  # "bos_token" -> "<｜begin▁of▁sentence｜>", …
        self.chat_template = chat_template
        self.vocab_size: int = backend.get_vocab_size()  # includes added tokens; the model's may be larger

    @classmethod
    def from_folder(
        cls, path: str | os.PathLike[str], chat_template: str | os.PathLike[str] | None = None
    ) -> Tokenizer:
        """Reads a checkpoint's tokenizer. `chat_template`: a Jinja file to use instead of the folder's own.
        Raises ValueError, which names the file or folder that is missing or wrong."""
        root = folder.existing(path)
        file = root / folder.CONFIG
        config = folder.read_config(file)
        special_tokens = folder.read_special_tokens(config, file)
        backend = folder.read_backend(root)
        folder.add_bos(backend, config, special_tokens, file)
        template_file = None if chat_template is None else Path(chat_template)
        template = folder.read_chat_template(root, config, special_tokens, template_file)
        return cls(backend, special_tokens, template)

    @property
    def bos_token(self) -> str | None:
        return self.special_tokens.get("bos_token")

    @property
    def eos_token(self) -> str | None:
        return self.special_tokens.get("eos_token")

    @property
    def bos_token_id(self) -> int | None:
        return self.token_id(self.bos_token)

    @property
    def eos_token_id(self) -> int | None:
        return self.token_id(self.eos_token)

    def token_id(self, token: str | None) -> int | None:
        """The id of a token; None if there is no such token."""
        return None if token is None else self._backend.token_to_id(token)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Returns the ids. With `add_special_tokens`, includes the special tokens that the checkpoint adds
        (BOS).

        Raises ValueError for text that is not valid Unicode (a lone surrogate, from a JSON escape).
        """
        return self.encode_batch([text], add_special_tokens)[0]

    def encode_batch(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """Like `encode` for each text, on all cores."""
        try:
            encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=add_special_tokens)
        except TypeError:
            for text in texts:
                check_unicode(text)
            raise
        return [encoding.ids for encoding in encodings]

    def pieces(self, text: str, size: int = PIECE) -> Iterator[str]:
        """Cuts the text into pieces that together have the same tokens as the whole, without special tokens.
        A piece is longer than `size` if no exact cut is known earlier."""
        return pieces(text, self._cut_places, size)

    def exceeds(self, texts: Sequence[str], most: int) -> bool:
        """True: the texts together have more than `most` tokens, without special ones. False: they may have
        fewer. Takes a hundredth of the time of `encode`. Raises ValueError for text that is not valid
        Unicode."""
        try:
            return self.length.exceeds(texts, most)
        except UnicodeEncodeError:
            for text in texts:
                check_unicode(text)
            raise

    @functools.cached_property
    def around(self) -> tuple[list[int], list[int]]:
        """The special tokens that `encode` puts before and after a text."""
        plain, whole = self.encode("a", False), self.encode("a")
        extra = len(whole) - len(plain)
        before = next(i for i in range(extra + 1) if whole[i : i + len(plain)] == plain)
        return whole[:before], whole[before + len(plain) :]

    @functools.cached_property
    def length(self) -> Length:
        return Length(byte_weights(self._backend))

    @functools.cached_property
    def _cut_places(self) -> re.Pattern[str] | None:
        return cut_places(self._backend)

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Returns the text. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary give no
        text."""
        table = self.token_bytes(skip_special_tokens)
        return b"".join([table[token_id] for token_id in token_ids]).decode("utf-8", "replace")

    def token_bytes(
        self, skip_special_tokens: bool = True, shown: frozenset[str] = frozenset()
    ) -> TokenBytes:
        """Returns the table from id to bytes. `decode` is the UTF-8 decoding of joined bytes. `shown`:
        special tokens that are not skipped."""
        which = skip_special_tokens, shown
        if which not in self._bytes:
            self._bytes[which] = TokenBytes(self._backend, *which)
        return self._bytes[which]

    def render_chat(
        self,
        messages: Sequence[Message],
        /,
        add_generation_prompt: bool = True,
        tools: Sequence[Mapping[str, object]] | None = None,
        **extra: object,
    ) -> str:
        """Returns the prompt of a chat as text; see `ChatTemplate.render`. Raises ValueError if there is no
        template."""
        if self.chat_template is None:
            raise ValueError("this checkpoint has no chat template; send a prompt to /v1/completions instead")
        return self.chat_template.render(messages, add_generation_prompt, tools, **extra)


def check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as e:
        where = f"{text[e.start]!r} at character {e.start}"
        raise ValueError(f"the text has half of a UTF-16 pair ({where}); send valid Unicode") from e
