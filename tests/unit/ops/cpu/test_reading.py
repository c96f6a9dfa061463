"""Reading past the outer caches: when it is chosen, which weights it concerns, and that it changes no bit."""

import json
import logging

import pytest
import torch
from support.native_kernels import Pool, at_level, built_levels, linear

from nextn.config import EMBEDDED, model_folder
from nextn.families.config import ModelConfig
from nextn.models.native import NativeModel
from nextn.models.native_weights import Drafting
from nextn.ops.cpu import reading, trials
from nextn.ops.cpu.interface import BF16, F32, INT8
from nextn.ops.cpu.library import machine_level
from nextn.ops.cpu.reading import measure_reading, non_temporal
from nextn.ops.cpu.weights import PackedWeight

LEVEL = machine_level()[0]
CACHE = 8 << 20


@pytest.fixture
def measured(monkeypatch):
    """Levels of trials that ran. Reading past the caches takes 0.9 of the time at the machine's level, 1.1 at
    others, and that nearly always."""
    levels = []

    def measure(level, cache):
        assert cache == CACHE
        levels.append(level)
        return (0.9, 0.05) if level == LEVEL else (1.1, 0.9)

    monkeypatch.setattr(reading, "data_caches", lambda: {1: 32 << 10, 2: 512 << 10, 3: CACHE})
    monkeypatch.setattr(reading, "measure_reading", measure)
    return levels


def test_only_weights_larger_than_the_cache_are_read_past_it(tmp_path, measured):
    assert not non_temporal(LEVEL, CACHE, tmp_path)
    assert measured == []
    assert non_temporal(LEVEL, CACHE + 1, tmp_path)


def test_the_trial_runs_once_and_its_result_is_saved(tmp_path, measured, caplog):
    with caplog.at_level(logging.INFO, "nextn.engine"):
        assert [non_temporal(LEVEL, 2 * CACHE, tmp_path) for _ in range(2)] == [True, True]
    assert measured == [LEVEL]
    words = "large weights are read past the caches; past them takes 0.90 of the time"
    assert words in caplog.text
    assert reading.saved(LEVEL, tmp_path) == words


def test_not_if_it_makes_reading_slower(tmp_path, measured, monkeypatch):
    monkeypatch.setattr(trials, "build_of", lambda level: "a build")
    assert not non_temporal("another level", 2 * CACHE, tmp_path)
    assert measured == ["another level"]
    assert "are read through the caches" in (reading.saved("another level", tmp_path) or "")


def test_without_a_known_cache_or_a_folder_nothing_is_measured(tmp_path, measured, monkeypatch):
    (tmp_path / "file").touch()
    assert not non_temporal(LEVEL, 2 * CACHE, tmp_path / "file" / "kernels")
    monkeypatch.setattr(reading, "data_caches", dict)
    assert not non_temporal(LEVEL, 2 * CACHE, tmp_path)
    assert measured == []
    assert reading.saved(LEVEL, tmp_path) is None


@pytest.mark.parametrize("damage", [[], [1.0], "ab", [0, 0], [1, 2], None, {"a": 1}])
def test_a_damaged_result_is_measured_again(tmp_path, measured, damage):
    non_temporal(LEVEL, 2 * CACHE, tmp_path)
    (file,) = tmp_path.glob("*.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"past caches": damage}))
    assert non_temporal(LEVEL, 2 * CACHE, tmp_path)
    assert len(measured) == 2
    assert json.loads(file.read_text())["past caches"] == [0.9, 0.05]


def test_a_disturbed_trial_decides_nothing():
    """Other work makes either reading the slower one, by chance."""
    assert reading.chosen(1.1, 0.6)
    assert reading.chosen(1.01, 0.9)
    assert not reading.chosen(1.1, 0.9)


def test_a_trial_compares_pairs(monkeypatch):
    monkeypatch.setattr(reading, "SECONDS", 0.0)
    ratio, slower = measure_reading(LEVEL, 1 << 20)
    assert ratio > 0
    assert slower in (0, 1)


@pytest.mark.parametrize("level", built_levels())
def test_it_changes_no_bit(level):
    x = torch.randn(12, 130)
    with at_level(level), Pool(2) as pool:
        for kind in (F32, BF16, INT8):
            weight = PackedWeight(200, 130, kind)
            weight.place(torch.randn(200, 130))
            usual = [linear(pool, x[:rows], weight) for rows in (1, 2, 4, 7, 12)]
            weight.struct.non_temporal = 1
            assert all(torch.equal(linear(pool, x[: len(y)], weight), y) for y in usual)


def test_it_concerns_the_weights_that_a_step_reads_once():
    """Not the drafter's. If it shares the head, each step decides."""
    cfg, sizes = ModelConfig.from_folder(model_folder(EMBEDDED)), []

    def always(size):
        sizes.append(size)
        return True

    for int8 in (False, True):
        model = NativeModel(cfg, 1, 1, drafting=Drafting(int8=int8), non_temporal=always)
        weights, target = model.weights, cfg.num_hidden_layers
        marks = [(layer.down.non_temporal, layer.mlp.shared_down.non_temporal) for layer in weights.layers]
        assert marks == [(1, 1)] * target + [(0, 0)]
        assert model._model.head.non_temporal == 1
        assert model._model.draft_head.non_temporal == 0
        assert sizes[-1] == weights.bytes
    usual = NativeModel(cfg, 1, 1)
    assert not any(layer.out.non_temporal for layer in usual.weights.layers)
