"""The fuzzers' properties (benchmarks/fuzz) hold for bytes drawn at random; parsers.py looks for longer, with
atheris."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FUZZ = Path(__file__).parents[3] / "benchmarks" / "fuzz"


@pytest.fixture(scope="module", autouse=True)
def fuzz() -> Iterator[None]:
    """A folder of scripts, not a package."""
    before = list(sys.path)
    sys.path.insert(0, str(FUZZ))
    yield
    sys.path[:] = before
    for name in [n for n, m in sys.modules.items() if "/benchmarks/f" in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["parts", "text", "streamed", "bodies"])
def test_property(name: str) -> None:
    from properties import PROPERTIES

    @settings(max_examples=50, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.binary(min_size=4, max_size=120))
    def holds(data: bytes) -> None:
        PROPERTIES[name](data)

    holds()
