"""The available grammar libraries, by their names in --grammar-backend."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

from nextn.grammar.base import Backend, Vocabulary

PACKAGES = {"llguidance": "llguidance", "xgrammar": "nextn[xgrammar]"}  # backend -> what to install


def backend_class(name: str) -> Callable[[Vocabulary], Backend]:
    """name: one of PACKAGES, checked by `check_backend`."""
    if name == "xgrammar":
        from nextn.grammar.xgrammar_backend import XGrammar

        return XGrammar
    from nextn.grammar.llguidance_backend import LLGuidance

    return LLGuidance


def make_backend(name: str, vocabulary: Vocabulary) -> Backend:
    return backend_class(name)(vocabulary)


def check_backend(name: str) -> None:
    """Raises ValueError if the library is not installed."""
    if name in PACKAGES and importlib.util.find_spec(name) is None:
        raise ValueError(f"--grammar-backend {name}: it is not installed; pip install '{PACKAGES[name]}'")
