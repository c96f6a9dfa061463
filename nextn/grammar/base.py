"""What a grammar library must be able to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import CompiledGrammar, Constraint


@dataclass(frozen=True)
class Vocabulary:
    """folder: of the checkpoint, with tokenizer.json. size: of the model, which may have more rows than the
    tokenizer has tokens."""

    folder: Path
    size: int
    eos_ids: Sequence[int]
    whitespace: bool = True  # may there be whitespace between the parts of JSON, as the model likes?


class Backend(Protocol):
    """Thread-safe."""

    def prepare(self, constraint: Constraint) -> str:
        """What `compile` takes, with all of the work that Python has with it, as that holds up other threads.
        Raises ValueError for what is not valid, or not supported."""

    def compile(self, kind: str, prepared: str) -> CompiledGrammar:
        """kind: the constraint's. Raises ValueError for what is not valid, or not supported."""


def compiled_again(
    make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary, kind: str, prepared: str
) -> CompiledGrammar:
    """What another process compiled."""
    return _backend(make, vocabulary).compile(kind, prepared)


@functools.lru_cache(maxsize=2)
def _backend(make: Callable[[Vocabulary], Backend], vocabulary: Vocabulary) -> Backend:
    return make(vocabulary)
