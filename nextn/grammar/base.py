"""The interface of a grammar library, and the table of libraries."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nextn.constraint import Constraint, Grammar

PACKAGES = {"llguidance": "llguidance", "xgrammar": "nextn[xgrammar]"}  # backend -> what to install


@dataclass(frozen=True)
class Vocabulary:
    """folder: the checkpoint's, with tokenizer.json. size: the model's, which may have more rows than the
    tokenizer has tokens."""

    folder: Path
    size: int
    eos_ids: Sequence[int]
    whitespace: bool = True  # may there be whitespace between the parts of JSON, as the model likes?


class Compiled(Protocol):
    def begin(self) -> Grammar:
        """Returns a grammar of one request, at its beginning."""


class Backend(Protocol):
    """One library. Thread-safe."""

    def prepare(self, constraint: Constraint) -> str:
        """Returns the input of `compile`. All work in Python is done here, as it blocks other threads. Raises
        ValueError for an invalid or unsupported constraint."""

    def compile(self, kind: str, prepared: str) -> Compiled:
        """kind: the constraint's. Raises ValueError for an invalid or unsupported constraint."""


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    """name: one of PACKAGES, checked by `check_backend`."""
    if name == "xgrammar":
        from nextn.grammar.xgrammar_backend import XGrammar

        return XGrammar(vocabulary)
    from nextn.grammar.llguidance_backend import LLGuidance

    return LLGuidance(vocabulary)


def check_backend(name: str) -> None:
    """Raises ValueError where the library is not installed."""
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise ValueError(f"--grammar-backend {name}: it is not installed; pip install '{PACKAGES[name]}'")
