"""Processes of ranks that are started before it is known what they are for."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.server_process import until

from nextn.distributed import process
from nextn.distributed.memory import Memory
from nextn.distributed.process import RankProcess, start_early

WRITES = """
import sys
from nextn.distributed.process import opened

try:
    link, (memory,), _ = opened(sys.argv[1:])
except EOFError:
    sys.exit(7)
memory.mapped(4096)[:8] = link.recv()
link.send("written")
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "writes.py").write_text(WRITES)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield "writes"
    assert process._early == []


def write(rank: RankProcess, memory: Memory, text: bytes) -> bool:
    rank.link.send(text)
    rank.link.recv()
    rank.close()
    return memory.mapped(4096)[:8] == text and rank.code() == 0


def test_early_processes_are_taken_first(module: str) -> None:
    start_early(module, 2)
    early, memory = [each.popen.pid for each in process._early], Memory()
    ranks = [RankProcess(module, [memory]) for _ in range(3)]
    assert [rank.pid for rank in ranks[:2]] == early
    assert all(write(rank, memory, b"%8d" % rank.pid) for rank in ranks)
    memory.close()


def test_one_that_is_not_needed_ends(module: str) -> None:
    start_early(module, 1)
    (early,) = process._early
    early.link.close()
    process._early.clear()
    assert early.popen.wait(30) == 7


def test_one_that_ended_early(module: str) -> None:
    """Its sentinel tells, as that of every other."""
    start_early(module, 1)
    process._early[0].popen.kill()
    process._early[0].popen.wait()
    memory = Memory()
    rank = RankProcess(module, [memory])
    until(lambda: rank.ended)
    assert rank.how_it_ended() == "signal 9"
    with pytest.raises(OSError):
        rank.link.send(b"text")
    rank.close()
    memory.close()
