"""The interface of a grammar library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import CompiledGrammar, Constraint

# Between the parts of JSON, as a regular expression: nothing, a space, or a line break and indentation. Weak
# models fill an answer with whitespace if they may.
MOST_INDENTATION = 16
JSON_WHITESPACE = rf"( |\n[ \t]{{0,{MOST_INDENTATION}}})?"
# llguidance reads this key of a schema, which bounds the whitespace in a Lark grammar too.
BOUNDED = {"x-guidance": {"whitespace_pattern": JSON_WHITESPACE}}


@dataclass(frozen=True)
class Vocabulary:
    """folder: the checkpoint's, with tokenizer.json. size: the model's, which may have more rows than the
    tokenizer has tokens."""

    folder: Path
    size: int
    eos_ids: Sequence[int]
    any_whitespace: bool = False  # between the parts of JSON; else JSON_WHITESPACE


class Backend(Protocol):
    """One library. Thread-safe."""

    def prepare(self, constraint: Constraint) -> str:
        """Returns the input of `compile`. All work in Python is done here, as it blocks other threads. Raises
        ValueError for an invalid or unsupported constraint."""

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        """kind: the constraint's. Raises ValueError for an invalid or unsupported constraint."""


def compiled_again(
    make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary, kind: str, prepared: str
) -> CompiledGrammar:
    """What another process compiled."""
    return _backend(make, vocabulary).compile(kind, prepared)


@functools.lru_cache(maxsize=2)
def _backend(make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary) -> Backend:
    return make(vocabulary)
