"""Step costs that are kept for the next start: found again, measured again where they are not these, and
never in the way of a start."""

from __future__ import annotations

import json
import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.native_kernels import built_levels

from nextn.config import EngineConfig
from nextn.engine import build, step_cost_file
from nextn.engine.engine import Engine
from nextn.engine.step_cost_file import StepCostFile
from nextn.request import Request, SamplingParams
from nextn.server_config import ServerConfig
from nextn.speculative.depth.cost import StepCost

COST = StepCost(1e-3, 1e-4, 2e-5, (8, 2), 1e-9, 0.9, 2e-5, 5e-5, 1e-6)
FACTORS = {0: [1.25, 1.1], 4: [0.8]}


def config(folder: Path | str, **options: Any) -> EngineConfig:
    return EngineConfig(**{"model_path": "fake:0.5,0.5", **options}, step_cost_cache=str(folder))


def kept(folder: Path | str, kernels: str = "cpu avx2", chip: str = "a chip", **options: Any) -> StepCostFile:
    return StepCostFile(config(folder, **options), chip, kernels)


def test_what_was_kept_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "er"
    assert kept(folder).read() is None
    kept(folder).write(COST, FACTORS)
    assert kept(folder).read() == (COST, FACTORS)
    [file] = folder.iterdir()
    assert file.suffix == ".json"
    assert json.loads(file.read_text())["cost"]["fixed"] == 1e-3


def test_the_later_one_is_in_force(tmp_path: Path) -> None:
    kept(tmp_path).write(COST, {})
    kept(tmp_path).write(replace(COST, fixed=2e-3), FACTORS)
    assert kept(tmp_path).read() == (replace(COST, fixed=2e-3), FACTORS)
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"model_path": "fake:0.5"},
        {"threads": 1},
        {"dtype": "float32"},
        {"page_size": 32},
        {"speculative_eagle_topk": 2},
        {"max_running_requests": 3},
        {"kernels": "cpu amx"},
        {"kernels": "reference "},
    ],
    ids=str,
)
def test_what_costs_depend_on_has_a_file_of_its_own(tmp_path: Path, options: dict[str, Any]) -> None:
    kept(tmp_path).write(COST, {})
    assert kept(tmp_path, **options).read() is None
    kept(tmp_path, **options).write(COST, FACTORS)
    assert kept(tmp_path).read() == (COST, {})


@pytest.mark.parametrize(("name", "value"), [("usable_cores", lambda: 999), ("__version__", "0")])
def test_so_has_another_machine_or_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: object
) -> None:
    kept(tmp_path).write(COST, {})
    assert kept(tmp_path).read() == (COST, {})
    assert kept(tmp_path, chip="another").read() is None
    monkeypatch.setattr(step_cost_file, name, value)
    assert kept(tmp_path).read() is None


def test_so_has_a_checkpoint_whose_files_changed(tmp_path: Path) -> None:
    model = tmp_path / "model"
    model.mkdir()
    weights = model / "model.safetensors"
    weights.write_bytes(b"1234")
    (model / "config.json").write_text("{}")
    cache = tmp_path / "cache"
    kept(cache, model_path=str(model)).write(COST, {})
    assert kept(cache, model_path=str(model / "." / "")).read() == (COST, {})
    weights.write_bytes(b"12345")
    assert kept(cache, model_path=str(model)).read() is None


@pytest.mark.parametrize("options", [{"check_integrity": True}, {"disable_radix_cache": True}, {}], ids=str)
def test_what_changes_no_cost_shares_it(tmp_path: Path, options: dict[str, Any]) -> None:
    kept(tmp_path).write(COST, FACTORS)
    assert kept(tmp_path, **options).read() == (COST, FACTORS)


def test_a_server_shares_it_whatever_its_own_options_are_and_keeps_no_key(tmp_path: Path) -> None:
    server = ServerConfig(
        model_path="fake:0.5,0.5", step_cost_cache=str(tmp_path), api_key="a-secret", port=1
    )
    StepCostFile(server, "a chip", "cpu avx2").write(COST, FACTORS)
    assert kept(tmp_path).read() == (COST, FACTORS)
    [file] = tmp_path.iterdir()
    assert "a-secret" not in file.read_text()


def test_kernels_that_were_built_again_are_measured_again(
    tmp_path: Path, timings: list[StepCost], monkeypatch: pytest.MonkeyPatch
) -> None:
    built_levels()
    small = {"model_path": "nextn-tiny", "kv_cache_tokens": 256}
    engine(tmp_path, **small)
    engine(tmp_path, **small)
    assert len(timings) == 1
    monkeypatch.setattr(build, "build_of", lambda level: "another")
    engine(tmp_path, **small)
    assert len(timings) == 2


GOOD = {"cost": {"fixed": 1e-3, "row": 1e-4, "experts": [8, 2]}, "factors": {}}
BAD = {
    "empty": b"",
    "truncated": json.dumps(GOOD).encode()[:-9],
    "not text": b"\xff\xfe\x00",
    "a list": b"[]",
    "null": b"null",
    "nested too deep": b"[" * 100_000,
    "no cost": b'{"factors": {}}',
    "no factors": b'{"cost": {"fixed": 1, "row": 1, "experts": [8, 2]}}',
    "no experts": b'{"cost": {"fixed": 1, "row": 1}, "factors": {}}',
    **{
        name: json.dumps({**GOOD, "cost": {**GOOD["cost"], **change}}).encode()
        for name, change in {
            "negative": {"row": -1e-4},
            "NaN": {"fixed": float("nan")},
            "infinite": {"a_pass": float("inf")},
            "a word": {"row": "much"},
            "nothing": {"row": None},
            "a list for a number": {"row": [1]},
            "all zero": {"fixed": 0.0, "row": 0.0},
            "an unknown part": {"column": 1.0},
            "experts that are one number": {"experts": 8},
            "three numbers of experts": {"experts": [8, 2, 1]},
            "more experts than there are": {"experts": [2, 8]},
            "no experts at all": {"experts": [0, 0]},
        }.items()
    },
    **{
        name: json.dumps({**GOOD, "factors": factors}).encode()
        for name, factors in {
            "factors that are a list": [1],
            "a size that is a word": {"many": [1, 1]},
            "a factor that is no list": {"1": 1.0},
            "a factor that is a word": {"1": ["a", "b"]},
        }.items()
    },
}
FACTORS_OUT_OF_RANGE = {
    "a negative factor": {"1": [-1.0, 0.1]},
    "a factor of NaN": {"1": [float("nan"), 0.1]},
    "a second factor of NaN": {"1": [1.0, float("nan")]},
    "a factor of 0": {"1": [0.0, 0.1]},
    "an infinite factor": {"1": [float("inf"), 0.1]},
    "a second one that is negative": {"1": [1.0, -0.1]},
}


def written(folder: Path, content: bytes) -> StepCostFile:
    file = kept(folder)
    assert file.path is not None
    file.path.write_bytes(content)
    return file


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_what_is_not_of_this_form_is_measured_again(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, content)
    with caplog.at_level(logging.WARNING):
        assert file.read() is None
    [record] = caplog.records
    assert f"step costs in {file.path} are measured again: " in record.getMessage()
    assert not record.getMessage().endswith(": ")


@pytest.mark.parametrize("factors", FACTORS_OUT_OF_RANGE.values(), ids=FACTORS_OUT_OF_RANGE)
def test_factors_that_are_none_are_measured_again(
    tmp_path: Path, factors: object, caplog: pytest.LogCaptureFixture
) -> None:
    file = written(tmp_path, json.dumps({**GOOD, "factors": factors}).encode())
    with caplog.at_level(logging.WARNING):
        assert file.read() is None
    assert len(caplog.records) == 1


def engine(folder: Path | str, **options: Any) -> Engine:
    return Engine(config(folder, **options))


def serves(made: Engine) -> bool:
    made.add(Request("0", [5, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True)))
    while made.has_work():
        made.step()
    made.check_integrity()
    return made.stats().finished == 1


@pytest.fixture
def timings(monkeypatch: pytest.MonkeyPatch) -> list[StepCost]:
    """What start-ups measured, on a machine that is always calm."""
    found: list[StepCost] = []

    def time_steps(executor: object, **limits: int) -> tuple[StepCost, bool]:
        found.append(replace(COST, fixed=1e-3 * (1 + len(found))))
        return found[-1], True

    monkeypatch.setattr(build, "time_steps", time_steps)
    return found


def cost_of(made: Engine) -> StepCost:
    assert made._scheduler.depth.auto is not None
    return made._scheduler.depth.auto.cost


def test_the_next_start_measures_nothing(tmp_path: Path, timings: list[StepCost]) -> None:
    first, second = engine(tmp_path), engine(tmp_path)
    assert len(timings) == 1
    assert cost_of(first) == cost_of(second) == timings[0]
    assert cost_of(engine(tmp_path, speculative_eagle_topk=2)) == timings[1]
    assert serves(second)


def test_what_was_learnt_is_where_the_next_start_begins(tmp_path: Path, timings: list[StepCost]) -> None:
    first = engine(tmp_path)
    assert first._scheduler.depth.auto is not None
    first._scheduler.depth.auto.factors[5] = [1.5, 1.75]
    first.remember()
    second = engine(tmp_path)
    assert second._scheduler.depth.auto is not None
    assert second._scheduler.depth.auto.factors[5] == [1.5, 1.75]
    assert len(timings) == 1


def test_a_corrupt_file_is_replaced(
    tmp_path: Path, timings: list[StepCost], caplog: pytest.LogCaptureFixture
) -> None:
    engine(tmp_path)
    [file] = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:40])
    with caplog.at_level(logging.WARNING):
        assert serves(engine(tmp_path))
    assert [r.getMessage().split(": ")[0] for r in caplog.records] == [
        f"step costs in {file} are measured again"
    ]
    assert cost_of(engine(tmp_path)) == timings[1]
    assert len(timings) == 2


def test_off_keeps_and_reads_nothing(
    tmp_path: Path, timings: list[StepCost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    engine("off")
    engine("off")
    assert len(timings) == 2
    assert not list(tmp_path.iterdir())


def test_by_default_it_lies_in_the_cache_of_the_user(
    tmp_path: Path, timings: list[StepCost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Engine(EngineConfig(model_path="fake:0.5"))
    assert [file.suffix for file in (tmp_path / "nextn" / "step-costs").iterdir()] == [".json"]


def test_where_nothing_can_be_written_the_engine_serves(
    tmp_path: Path, timings: list[StepCost], caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "a file"
    file.write_text("x")
    with caplog.at_level(logging.WARNING):
        assert serves(engine(file))
    assert any("step costs cannot be saved for the next start: " in r.getMessage() for r in caplog.records)
    assert file.read_text() == "x"


def test_a_machine_that_is_busy_keeps_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "time_steps", lambda executor, **limits: (COST, False))
    busy = engine(tmp_path)
    assert cost_of(busy) == COST
    busy.remember()
    assert not list(tmp_path.iterdir())


def test_a_file_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that ends in the middle leaves the old one, and nothing else."""
    kept(tmp_path).write(COST, {})
    write = Path.write_bytes

    def full(self: Path, content: bytes) -> int:
        write(self, content[:30])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    kept(tmp_path).write(replace(COST, fixed=9.0), {})
    monkeypatch.undo()
    assert kept(tmp_path).read() == (COST, {})
    assert len(list(tmp_path.iterdir())) == 1


def test_processes_that_write_at_once_write_files_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = []
    replaced = Path.replace

    def noted(self: Path, target: Path) -> Path:
        parts.append(self.name)
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", noted)
    for pid in (7, 8):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        kept(tmp_path).write(COST, {})
    assert len(set(parts)) == 2
    assert kept(tmp_path).read() == (COST, {})
