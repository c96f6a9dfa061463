"""Records of experts' rows, from counts that only grow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from nextn.distributed.placement import Placement
from nextn.engine import expert_recorder
from nextn.engine.executor import ExpertCounts
from nextn.engine.expert_recorder import ExpertRecorder, ShardWindow
from nextn.expert_load import CountTable


class Counts:
    """Of two layers with three experts, and of one NextN layer."""

    def __init__(self) -> None:
        self.target, self.nextn = np.full((2, 3), 7, np.int64), np.full((1, 3), 5, np.int64)

    def __call__(self) -> ExpertCounts:
        return self.target.copy(), self.nextn.copy()

    def step(self, expert: int, rows: int) -> None:
        self.target[:, expert] += rows
        self.nextn[0, expert] += 1


def read(table: CountTable | None, kind: str) -> NDArray[Any]:
    assert table is not None
    return np.frombuffer(table.data, kind).reshape(table.shape)


def test_only_what_came_between_start_and_stop() -> None:
    counts = Counts()
    recorder = ExpertRecorder(counts, by_step=False)
    assert recorder.take() is None
    recorder.start()
    assert recorder.take() is None  # no step yet
    for rows in (2, 3):
        counts.step(1, rows)
        recorder.stepped()
    recorder.stop()
    counts.step(0, 50)
    recorder.stepped()
    recorder.stop()
    record = recorder.take()
    assert record is not None
    assert (record.steps, record.left_out) == (2, 0)
    assert read(record.target, "q").tolist() == [[0, 5, 0], [0, 5, 0]]
    assert read(record.nextn, "q").tolist() == [[0, 2, 0]]
    assert recorder.take() is None


def test_what_is_taken_while_it_records_is_not_taken_again() -> None:
    counts = Counts()
    recorder = ExpertRecorder(counts, by_step=False)
    recorder.start()
    for rows in (2, 3):
        counts.step(2, rows)
        recorder.stepped()
        record = recorder.take()
        assert record is not None
        assert record.steps == 1
        assert read(record.target, "q")[0].tolist() == [0, 0, rows]
    counts.step(2, 9)
    recorder.stepped()
    recorder.start()  # anew
    assert recorder.take() is None


def test_a_table_for_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_recorder, "MOST_STEPS", 3)
    counts = Counts()
    recorder = ExpertRecorder(counts, by_step=True)
    recorder.start()
    for rows in range(1, 6):
        counts.step(rows % 3, rows)
        recorder.stepped()
    recorder.stop()
    counts.step(0, 50)
    record = recorder.take()
    assert record is not None
    assert (record.steps, record.left_out) == (5, 2)
    assert read(record.target, "i")[:, 1].tolist() == [[3, 0, 0], [0, 4, 0], [0, 0, 5]]
    assert read(record.nextn, "i")[:, 0].tolist() == np.eye(3).tolist()


def test_without_counts() -> None:
    recorder = ExpertRecorder(lambda: None, by_step=False)
    with pytest.raises(ValueError, match="does not count"):
        recorder.start()
    recorder.stepped()
    recorder.stop()
    assert recorder.take() is None


def test_windows_of_the_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(expert_recorder, "WINDOW", 3)
    counts = Counts()
    share = SimpleNamespace(placement=Placement.trivial(2, 3, 1), shards=2)  # 0, 1 and 2, 0
    world = SimpleNamespace(share=share, groups=1, group=0, dynamic=True)
    window = ShardWindow(counts, world)  # type: ignore[arg-type]

    def step(expert: int, idle: bool = False) -> Any:
        counts.step(expert, 2)
        window.stepped(idle)
        return None if window.rows is None else np.frombuffer(window.rows.rows).reshape(2, 2).tolist()

    assert step(0) is None
    assert step(2, idle=True) == [[1, 3]] * 2  # half of expert 0 in either
    assert step(2) == [[1, 5]] * 2
    assert step(1) == step(1) == [[1, 5]] * 2  # of the last whole window
    assert step(1) == [[6, 0]] * 2
    share.placement = Placement(np.array([[2, 2, 1, 0]] * 2), 3)
    assert step(1) == [[6, 0]] * 2
    assert step(1, idle=True) == [[0, 2]] * 2
