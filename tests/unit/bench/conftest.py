"""Results as the demo makes them."""

from __future__ import annotations

import pytest
from support.demo_results import demo_results

from nextn.bench.results import Results


@pytest.fixture
def results() -> Results:
    return demo_results()
