"""Two ranks pass a row to each other, and what comes is what was sent (`fill` asserts it)."""

from __future__ import annotations

import os

import pytest
from support.native_kernels import built_levels
from support.processes import children

from nextn.bench.dev.micro import gather
from nextn.bench.dev.micro.gather import Gather, measure_gather

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")


def test_it_ends_with_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "SECONDS", 0.0)
    before = children(os.getpid())
    found = measure_gather(1024)
    assert found == Gather(1024, found.seconds)
    assert found.seconds > 0
    assert len(children(os.getpid()) - before) <= 1  # multiprocessing's resource tracker stays


def test_a_second_rank_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gather, "_other", print)  # and nothing else
    with pytest.raises(RuntimeError, match="the second rank did not start"):
        measure_gather(1024)
