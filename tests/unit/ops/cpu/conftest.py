"""`level`: every test that asks for it runs on each library that is built and that this machine can run."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from support.native_kernels import Pool, at_level

from nextn.config import CPU_LEVELS


@pytest.fixture(params=CPU_LEVELS)
def level(request: pytest.FixtureRequest) -> Iterator[str]:
    with at_level(request.param):
        yield request.param


@pytest.fixture
def pool(level: str) -> Iterator[Pool]:
    """Of two threads, at the test's level."""
    with Pool(2) as made:
        yield made


@pytest.fixture(autouse=True, scope="module")
def one_torch_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
