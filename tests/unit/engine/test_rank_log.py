"""Which rank has written a log line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from nextn.config import EngineConfig
from nextn.distributed.memory import Memory
from nextn.engine import gang
from nextn.engine.rank_log import name_replica
from nextn.parallel_config import ParallelConfig


class Link:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, message: Any) -> None:
        self.sent.append(message)


class Process:
    """A rank's process that is not started."""

    def __init__(self, module: str, memories: Any) -> None:
        self.link = Link()


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gang, "RankProcess", Process)
    yield
    name_replica(None)


def starts(config: EngineConfig, memory: Memory | None = None) -> list[str]:
    """How the lines of the started ranks begin."""
    processes: dict[int, Any] = {}
    gang.start(config, memory, processes)
    return [process.link.sent[0][-1] for _, process in sorted(processes.items())]


def test_ranks_of_the_only_engine() -> None:
    memory = Memory()
    assert starts(EngineConfig(tp_size=3), memory) == ["[tp1]", "[tp2]"]
    memory.close()


def test_ranks_of_a_replica() -> None:
    name_replica(0)
    memory = Memory()
    assert starts(EngineConfig(tp_size=3), memory) == ["[dp0 tp1]", "[dp0 tp2]"]
    memory.close()


def test_ranks_of_all_groups_on_several_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process starts those of its machine. A rank's number is then that of all groups."""
    monkeypatch.setattr(ParallelConfig, "groups", 2)
    monkeypatch.setattr(ParallelConfig, "own_ranks", range(1, 4))
    assert starts(EngineConfig(tp_size=2)) == ["[dp0 tp1]", "[dp1 tp0]", "[dp1 tp1]"]
