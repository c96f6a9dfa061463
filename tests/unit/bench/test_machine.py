"""A result says which kernels its machine can run."""

from __future__ import annotations

import pytest

from nextn.bench import machine
from nextn.config import CPU_LEVELS
from nextn.ops.cpu.library import NoLibrary, machine_level


def test_level() -> None:
    try:
        best, _ = machine_level()
    except NoLibrary:
        pytest.skip("no native kernels")
    assert CPU_LEVELS.index(machine.this_machine().level) >= CPU_LEVELS.index(best)


def test_without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> tuple[str, ...]:
        raise NoLibrary("no compiler")

    monkeypatch.setattr(machine, "able_levels", none)
    assert machine.this_machine().level == ""
