"""The choice of arithmetic: measured once, kept, the same for all who ask."""

import json
import logging
import threading

import pytest

from nextn.ops.cpu import trials, ways
from nextn.ops.cpu.interface import BF16, BY_BYTES, E4M3, F32, INT8, KINDS, Q4_K, WAYS
from nextn.ops.cpu.library import library, machine_level
from nextn.ops.cpu.ways import GAIN, ROWS, Ways, choose, describe, measure

LEVEL = machine_level()[0]
OWN = [1.0] * len(ROWS)


class Kernels:
    """Of a level with all ways."""

    def nx_ways(self, kind: int) -> int:
        return 0 if kind == F32 else 0b11110 if kind == Q4_K else 0b1110


class Avx2:
    """Of a level whose default is the only other way."""

    def nx_ways(self, kind: int) -> int:
        return 1 << BY_BYTES if kind == Q4_K else 0


@pytest.fixture
def asked(monkeypatch):
    """What was measured; way 3 is fastest, except for bytes."""
    asked = []

    def measured(level, kind, some):
        asked.append((level, kind))
        return {way: [{3: 0.9, BY_BYTES: 0.5}.get(way, 1.0)] * len(ROWS) for way in some}

    monkeypatch.setattr(ways, "library", lambda level: Kernels())
    monkeypatch.setattr(ways, "measure", measured)
    return asked


@pytest.mark.parametrize("kind", [F32, BF16, E4M3, INT8, Q4_K])
def test_every_way_of_this_machine_is_measured(kind, monkeypatch):
    monkeypatch.setattr(trials, "SECONDS", 0.0)
    monkeypatch.setattr(ways, "TRIAL_BYTES", 0)
    able = [0, *(way for way in range(1, len(WAYS)) if library(LEVEL).nx_ways(kind) >> way & 1)]
    found = measure(LEVEL, kind, able)
    assert list(found) == able
    assert all(len(each) == len(ROWS) and min(each) > 0 for each in found.values())


def test_a_way_is_chosen_that_is_faster_over_all_row_counts():
    assert choose({0: OWN, 1: OWN, 2: [0.9] * len(ROWS)}) == 2
    assert choose({0: OWN, 1: OWN, 2: [2.0, *[0.9] * (len(ROWS) - 1)]}) == 0  # it loses more at one row


def test_a_gain_within_the_noise_changes_nothing():
    assert choose({0: OWN, 2: [GAIN + 0.01] * len(ROWS)}) == 0


def test_what_was_measured_is_kept_for_the_next_start(tmp_path, asked, caplog):
    assert Ways(LEVEL, tmp_path).of(BF16) == 3
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert Ways(LEVEL, tmp_path).of(BF16) == 3
    assert asked == [(LEVEL, BF16)]
    assert "kernels: bf16 weights by f32 multiply-adds: 0.90 of the time" in caplog.text
    assert Ways(LEVEL, tmp_path).kept() == {"bf16": describe(3, {0: OWN, 3: [0.9] * len(ROWS)})}


def test_each_kind_is_measured_for_itself(tmp_path, asked):
    ways = Ways(LEVEL, tmp_path)
    assert [ways.of(kind) for kind in (BF16, INT8, F32, BF16)] == [3, 3, 0, 3]
    assert asked == [(LEVEL, BF16), (LEVEL, INT8)]


def test_ways_that_round_inputs_are_measured_and_left_out(tmp_path, asked):
    """So both options use the same times, whichever comes first."""
    assert Ways(LEVEL, tmp_path, rounded=False).of(Q4_K) == 3
    assert Ways(LEVEL, tmp_path).of(Q4_K) == BY_BYTES
    assert Ways(LEVEL, tmp_path, rounded=False).of(Q4_K) == 3
    assert asked == [(LEVEL, Q4_K)]


def test_one_way_beside_the_default(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(ways, "library", lambda level: Avx2())
    assert Ways(LEVEL, tmp_path, rounded=False).of(Q4_K) == 0
    assert asked == []
    assert Ways(LEVEL, tmp_path).of(Q4_K) == BY_BYTES
    assert Ways(LEVEL, tmp_path).of(BF16) == 0
    assert asked == [(LEVEL, Q4_K)]


def test_times_that_lack_a_way_are_measured_again(tmp_path, asked, monkeypatch):
    monkeypatch.setattr(ways, "library", lambda level: Avx2())
    Ways(LEVEL, tmp_path).of(Q4_K)
    monkeypatch.setattr(ways, "library", lambda level: Kernels())
    assert Ways(LEVEL, tmp_path, rounded=False).of(Q4_K) == 3
    assert len(asked) == 2


def test_another_chip_or_level_measures_again(tmp_path, asked, monkeypatch):
    Ways(LEVEL, tmp_path).of(BF16)
    monkeypatch.setattr(trials, "cpu_model", lambda: "another chip")
    Ways(LEVEL, tmp_path).of(BF16)
    Ways("portable", tmp_path).of(BF16)
    assert asked == [(LEVEL, BF16), (LEVEL, BF16), ("portable", BF16)]


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"[]", b'{"formats": []}', b'{"formats": {"bf16": {}}}', b"\xff",
        b'{"formats": {"bf16": {"another": []}}}', b'{"formats": {"bf16": null}}',
        b'{"formats": {"bf16": []}}',
        b'{"formats": {"bf16": {"f32 multiply-adds": [1]}}}',
        b'{"formats": {"bf16": {"the level\'s default": [0, 0, 0, 0, 0]}}}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_measured_again_and_replaced(tmp_path, asked, damage):
    Ways(LEVEL, tmp_path).of(BF16)
    (file,) = tmp_path.glob("*.json")
    file.write_bytes(damage)
    Ways(LEVEL, tmp_path).kept()
    assert Ways(LEVEL, tmp_path).of(BF16) == 3
    assert len(asked) == 2
    assert json.loads(file.read_bytes())["formats"]["bf16"][WAYS[3]] == [0.9] * len(ROWS)


def test_without_a_place_to_keep_it_nothing_is_measured(tmp_path, asked):
    (tmp_path / "file").touch()
    ways = Ways(LEVEL, tmp_path / "file" / "kernels")
    assert ways.of(BF16) == 0
    assert ways.kept() == {}
    assert not asked


def test_processes_that_start_together_measure_once(tmp_path, asked):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(Ways(LEVEL, tmp_path).of(BF16))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [3] * 4
    assert len(asked) == 1


def test_ways_and_kinds_have_names():
    assert set(KINDS) == {*range(len(KINDS))}
    assert len(WAYS) == 5
