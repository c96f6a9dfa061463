"""Tokenizes texts without holding up the event loop. Long texts are tokenized in threads, in pieces. Texts
that cannot fit are refused first. Tokenizing a text of any length therefore needs only a few megabytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from nextn.server.protocol.errors import bad_request, too_long, too_many_tokens
from nextn.tokenizer.tokenizer import PIECE, Tokenizer, check_unicode
from nextn.trace import TRACE

LONG_TEXT = 20_000  # characters; texts from this length on are tokenized in a thread
THREADS = max(1, min(4, (os.cpu_count() or 1) // 4))
Result = TypeVar("Result")


class Encoder:
    """Tokenizes for all requests. Its threads take pieces in turn, so that long texts share the threads."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="tokenize")

    async def encode(
        self,
        texts: Iterable[str],
        add_special_tokens: bool = True,
        most: int | None = None,
        most_together: int | None = None,
    ) -> list[list[int]]:
        """The tokens of each text. Raises ApiError (400) as soon as it is certain that a long text has more
        than `most` tokens, or all texts together have more than `most_together`."""
        many: list[list[int]] = []
        count = 0
        try:
            for batch in batches(texts):
                many += await self._batch(batch, add_special_tokens, most)
                count += sum(map(len, many[-len(batch) :]))
                if most_together is not None and count > most_together:
                    raise too_many_tokens(most_together)
        except ValueError as e:
            raise bad_request(str(e), "prompt") from e
        return many

    async def check_length(self, texts: Sequence[str], most: int) -> None:
        """Raises ApiError (400) if it is certain, without tokenizing, that the texts together have more than
        `most` tokens."""
        try:
            exceeds = await self.run(self.tokenizer.exceeds, texts, most)
        except ValueError as e:
            raise bad_request(str(e), "prompt") from e
        if exceeds:
            raise too_long(sum(map(len, texts)), most)

    async def run(self, call: Callable[..., Result], *values: object) -> Result:
        """Runs `call` in one of the threads, after the calls that came earlier."""
        call = TRACE.around("server", "tokenize", call)
        return await asyncio.get_running_loop().run_in_executor(self._threads, call, *values)

    async def _batch(self, texts: list[str], add_special_tokens: bool, most: int | None) -> list[list[int]]:
        length = sum(map(len, texts))
        if length < LONG_TEXT:
            return TRACE.around("server", "tokenize", self.tokenizer.encode_batch)(texts, add_special_tokens)
        if length <= PIECE:
            return await self.run(self.tokenizer.encode_batch, texts, add_special_tokens)
        (text,) = texts
        return [await self._long(text, add_special_tokens, most)]

    async def _long(self, text: str, add_special_tokens: bool, most: int | None) -> list[int]:
        if most is None:
            await self.run(check_unicode, text)
        else:
            await self.check_length([text], most)
        before, after = self.tokenizer.around if add_special_tokens else ([], [])
        tokens = [*before]
        pieces = self.tokenizer.pieces(text)
        while (more := await self.run(self._next, pieces)) is not None:
            tokens += more
            if most is not None and len(tokens) > most:
                raise too_long(len(text), most)
        return tokens + after

    def _next(self, pieces: Iterator[str]) -> list[int] | None:
        piece = next(pieces, None)
        return None if piece is None else self.tokenizer.encode(piece, add_special_tokens=False)


def batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Splits texts into batches that are tokenized in one call: texts of up to PIECE characters together, or
    one longer text."""
    batch, length = list[str](), 0
    for text in texts:
        if batch and length + len(text) > PIECE:
            yield batch
            batch, length = [], 0
        batch.append(text)
        length += len(text)
    if batch:
        yield batch
