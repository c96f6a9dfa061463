"""The interface of a grammar library."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import CompiledGrammar, Constraint


@dataclass(frozen=True)
class Vocabulary:
    """folder: the checkpoint's, with tokenizer.json. size: the model's, which may have more rows than the
    tokenizer has tokens."""

    folder: Path
    size: int
    eos_ids: Sequence[int]
    whitespace: bool = True  # may there be whitespace between the parts of JSON, as the model likes?


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
