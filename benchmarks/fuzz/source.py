"""Makes texts, tokens and cuts from a fuzzer's bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, TypeVar

from nextn.config import EMBEDDED, model_folder
from nextn.server.parsers import reasoning, tools
from nextn.server.parsers.answer import AnswerFormat
from nextn.tokenizer import Tokenizer

TOKENIZER = Tokenizer.from_folder(model_folder(EMBEDDED))
CALL_MARKS = [mark for known in tools.FORMATS.values() for mark in known.marks]
WORDS = (
    *CALL_MARKS, *reasoning.MARKERS, "function", "\n```json\n", "\n```", "```", "{", '"a": 1', "}", "\n",
    " ", "<", "<｜tool", "</thi", "x", "ab", "é", "😀", "\r", "\x00", "\x85", "\u2028", "data: ", "\n\n", '"',
    "\\",
)  # fmt: skip
Item = TypeVar("Item", str, list[int])


class Source(random.Random):
    """A random generator that takes its decisions from bytes. After the last byte, every decision is the
    first choice."""

    def __new__(cls, data: bytes) -> Source:
        return super().__new__(cls)  # Random.__new__ would use the bytes as a seed

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self.data, self.at = data, 0

    def getrandbits(self, k: int) -> int:
        size = (k + 7) // 8
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / 2**16

    def below(self, n: int) -> int:
        """A number below n. It takes one byte, so that a small change of the bytes changes one decision."""
        return self.getrandbits(8) % n

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[self.below(len(choices))]

    @property
    def left(self) -> int:
        return max(0, len(self.data) - self.at)

    def rest(self) -> bytes:
        return self.data[self.at :]

    def text(self) -> str:
        return "".join(self.pick(WORDS) for _ in range(min(self.below(16), self.left)))

    def tokens(self) -> list[int]:
        """The tokens of a text, or arbitrary ids: parts of characters, special tokens, unknown ids."""
        if self.below(2):
            return TOKENIZER.encode(self.text(), add_special_tokens=False)
        return [self.getrandbits(16) % 4200 for _ in range(min(self.below(24), self.left))]

    def cut(self, whole: Item) -> list[Item]:
        parts, at = [], 0
        while at < len(whole):
            size = self.below(5) if self.left else len(whole)
            parts.append(whole[at : at + size])
            at += size
        return parts

    def answer_format(self) -> AnswerFormat:
        return AnswerFormat(
            self.pick([None, *tools.FORMATS]), self.pick([None, False, True]), self.below(2) == 0
        )

    def stop(self) -> list[str]:
        return [self.pick(WORDS) for _ in range(self.below(3))]
