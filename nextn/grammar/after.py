"""A grammar that begins after a given token. The text before it, such as a model's reasoning, is free."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nextn.constraint import CompiledGrammar, Grammar
from nextn.grammar.base import Vocabulary


class CompiledAfter:
    def __init__(self, compiled: CompiledGrammar, token: int, vocabulary: Vocabulary) -> None:
        self.compiled, self.token, self.vocabulary = compiled, token, vocabulary

    def begin(self) -> Grammar:
        return _After(self.compiled.begin(), self.token, self.vocabulary)


class _After:
    """A grammar that begins after `token`. The text may not end before that token. Counts the tokens taken:
    `free` up to and including `token`, `inside` after it."""

    def __init__(self, grammar: Grammar, token: int, vocabulary: Vocabulary) -> None:
        self.grammar, self.token, self.vocabulary = grammar, token, vocabulary
        self.begun = False
        self.free = self.inside = 0

    def mask(self) -> NDArray[np.bool_]:
        if self.begun:
            return self.grammar.mask()
        found = np.ones(self.vocabulary.size, dtype=np.bool_)
        found[list(self.vocabulary.eos_ids)] = False
        return found

    @property
    def accepting(self) -> bool:
        return self.begun and self.grammar.accepting

    @property
    def failure(self) -> str | None:
        return self.grammar.failure

    def advance(self, tokens: Sequence[int]) -> int:
        taken = 0
        while not self.begun and taken < len(tokens) and tokens[taken] not in self.vocabulary.eos_ids:
            self.begun = tokens[taken] == self.token
            self.free += 1
            taken += 1
        if self.begun:
            more = self.grammar.advance(tokens[taken:])
            self.inside += more
            taken += more
        return taken

    def rollback(self, count: int) -> None:
        inside = min(count, self.inside)
        if inside:
            self.grammar.rollback(inside)
            self.inside -= inside
        if count > inside:
            self.free -= count - inside
            self.begun = False
        assert self.free >= 0
