"""Imports scripts of a folder as modules. They can import each other, as scripts of one folder can."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest


def script_modules(
    monkeypatch: pytest.MonkeyPatch, folder: Path, names: Sequence[str]
) -> Iterator[SimpleNamespace]:
    """For a fixture to yield from. Afterwards the modules are removed from sys.modules."""
    monkeypatch.syspath_prepend(str(folder))
    yield SimpleNamespace(**{name: __import__(name) for name in names})
    for name in names:
        del sys.modules[name]
