"""The interface of a grammar library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import CompiledGrammar, Constraint

# Whitespace between the parts of JSON, as a regular expression: nothing, a space, or a line break and
# indentation. Weak models would fill an answer with whitespace if they could.
MOST_INDENTATION = 16
JSON_WHITESPACE = rf"( |\n[ \t]{{0,{MOST_INDENTATION}}})?"
# llguidance reads this key of a schema, which bounds the whitespace in a Lark grammar too.
BOUNDED = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}


@dataclass(frozen=True)
class Vocabulary:
    """folder: of the checkpoint; it contains tokenizer.json. size: the model's; it may exceed the tokenizer's
    number of tokens."""

    folder: Path
    size: int
    eos_ids: Sequence[int]
    any_whitespace: bool = False  # any between the parts of JSON; otherwise JSON_WHITESPACE


class Backend(Protocol):
    """One grammar library. Thread-safe."""

    def prepare(self, constraint: Constraint) -> str:
        """Returns the input of `compile`. All work in Python belongs here, because it blocks other threads.
        Raises ValueError for an invalid or unsupported constraint."""

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        """kind: the constraint's. Raises ValueError for an invalid or unsupported constraint."""


def compiled_again(
    make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary, kind: str, prepared: str
) -> CompiledGrammar:
    """Compiles again what another process compiled."""
    return _backend(make, vocabulary).compile(kind, prepared)


@functools.lru_cache(maxsize=2)
def _backend(make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary) -> Backend:
    return make(vocabulary)
