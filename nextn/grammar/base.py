"""What a grammar library must be able to do, and the table of those there are."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import CompiledGrammar, Constraint

PACKAGES = {"llguidance": "llguidance", "xgrammar": "nextn[xgrammar]"}  # backend -> what to install


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


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """name: one of PACKAGES, checked by `check_backend`."""
    if name == "xgrammar":
        from nextn.grammar.xgrammar_backend import XGrammar

        return XGrammar(vocabulary)
    from nextn.grammar.llguidance_backend import LLGuidance

    return LLGuidance(vocabulary)


def compiled_again(name: str, vocabulary: Vocabulary, kind: str, prepared: str) -> CompiledGrammar:
    """What another process compiled."""
    return _backend(name, vocabulary).compile(kind, prepared)


@functools.lru_cache(maxsize=2)
def _backend(name: str, vocabulary: Vocabulary) -> Backend:
    return make_backend(name, vocabulary)


def check_backend(name: str) -> None:
    """Raises ValueError where the library is not installed."""
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise ValueError(f"--grammar-backend {name}: it is not installed; pip install '{PACKAGES[name]}'")
