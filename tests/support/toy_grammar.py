"""A grammar without a library. Which tokens may follow is a hash of the tokens before, so every token
matters."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np


class ToyGrammar:
    """At each position about one in `spread` of the `size` tokens may follow. The text is complete after
    `length` tokens, and at some positions before. dead: after this many tokens nothing may follow. narrow: at
    this many of ten positions where the text may not end, only one token may follow."""

    def __init__(
        self, size: int, length: int, spread: int = 3, salt: int = 0, dead: int = -1, narrow: int = 0
    ) -> None:
        self.size, self.length, self.spread, self.salt, self.dead = size, length, spread, salt, dead
        self.narrow = narrow
        self.tokens: list[int] = []

    def begin(self) -> ToyGrammar:
        fresh = copy.copy(self)
        fresh.tokens = []
        return fresh

    def _state(self) -> int:
        value = self.salt
        for token in self.tokens:
            value = (value * 31 + token + 7) % 65521
        return value

    def mask(self) -> np.ndarray:
        if len(self.tokens) in (self.length, self.dead):
            return np.zeros(self.size, dtype=np.bool_)
        found = (np.arange(self.size) * 2654435761 // 7 + self._state()) % self.spread == 0
        found[:2] = False  # end tokens
        assert found.any()
        if self._state() // 7 % 10 < self.narrow and not self.accepting:
            found[found.argmax() + 1 :] = False
        return found

    @property
    def accepting(self) -> bool:
        n = len(self.tokens)
        return n != self.dead and (n == self.length or (n > 0 and self._state() % 5 == 0))

    @property
    def failure(self) -> str | None:
        return None

    def advance(self, tokens: Sequence[int]) -> int:
        for i, token in enumerate(tokens):
            if not self.mask()[token]:
                return i
            self.tokens.append(token)
        return len(tokens)

    def rollback(self, count: int) -> None:
        assert count <= len(self.tokens)
        del self.tokens[len(self.tokens) - count :]
