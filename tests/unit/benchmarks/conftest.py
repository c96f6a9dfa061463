"""The peers' benchmark is a folder of scripts, not a package: it is put on the path for its tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PEERS = Path(__file__).parents[3] / "benchmarks" / "peers"


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(PEERS))
    yield PEERS
    for name in [n for n, m in sys.modules.items() if str(PEERS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]
