"""`nextn bench micro` on the embedded model, with as few samples as it can do with: structure, no timings."""

from __future__ import annotations

import functools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nextn.bench.dev.micro import cases, ceilings, clock, gather, native_cases, rank_steps, run
from nextn.bench.dev.micro import steps as steps_module
from nextn.bench.dev.micro.ceilings import make_ceilings
from nextn.bench.dev.micro.run import Effort
from nextn.cli import main
from nextn.ops.cpu.library import NoLibrary, library

HEADLINE = (
    "read_gb_s", "onednn_gflop_s", "linear_1row_bw_frac", "linear_4row_over_1row",
    "linear_256row_over_onednn", "step_1row_bw_frac", "step_overhead_ms",
)  # fmt: skip
BOTH = ("cpu", "reference")
STEPS = ["decode", "verify 2 drafts", "prefill 64", "decode 4 requests", "decode 8 requests"]
# At its start an engine measures steps up to these sizes, for long in plain torch.
SHORT = ["--chunked-prefill-size", "64", "--max-running-requests", "8"]


def check_models(found: dict[str, Any]) -> None:
    """Bytes over bandwidth and operations over peak, of every op and step."""
    peaks = found["ceilings"]["native_gflop_s"] | {
        "torch bfloat16": max(found["ceilings"]["bf16_gflop_s"].values()),
        "torch float32": max(found["ceilings"]["f32_gflop_s"].values()),
    }
    for one in (*found["linear"], *found["ops"], *found["steps"]):
        model, took = one["model"], one["ms"] if "ms" in one else one["us"] / 1e3
        read = one["bytes"] / found["read_gb_s"] / 1e6
        computed = one["flops"] * sum(share / peaks[name] for name, share in one["arithmetic"].items()) / 1e6
        near = functools.partial(pytest.approx, rel=0.02, abs=2e-4)
        assert model["read_ms"] == near(read)
        assert model["arithmetic_ms"] == near(computed)
        assert model["max_ms"] == near(max(read, computed))
        assert model["sum_ms"] == near(read + computed)
        assert model["measured_ms"] == near(took)
        assert model["over_max"] >= model["over_sum"] > 0
        assert model["waits_for"] in ("reading", "arithmetic", "both in turn", "other work")


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(run, "QUICK", Effort(rounds=1, steps=2, seconds=0.0))
    monkeypatch.setattr(run, "make_ceilings", functools.partial(make_ceilings, dram=1 << 24, squares=(64,)))
    # Weights from 40 MB: there are caches of 300 MiB, for which it takes gigabytes.
    monkeypatch.setattr(run, "cache_bytes", lambda level: 1 << 20)
    monkeypatch.setattr(clock, "BURST", 0.0)  # one call a sample
    monkeypatch.setattr(clock, "FEWEST", 1)  # round
    monkeypatch.setattr(steps_module, "PROMPT", 32)
    monkeypatch.setattr(steps_module, "REQUESTS", (8, 4))
    for bench in (cases.Bench, native_cases.NativeBench):  # numbers of rows of the ops
        monkeypatch.setattr(bench.cases, "__defaults__", ((1, 32),))
    for module in (cases, native_cases, run):  # torch takes long for products in bf16 on many machines
        monkeypatch.setattr(module, "LINEAR", (1024, 256))
    monkeypatch.setattr(ceilings, "NARROW", (256, 1024, 256))
    # Two ranks that spin for each other, on cores that have other work.
    monkeypatch.setattr(gather, "BURST", 10)
    monkeypatch.setattr(gather, "SECONDS", 0.0)
    monkeypatch.setattr(rank_steps, "SECONDS", 0.0)
    monkeypatch.setattr(rank_steps, "REQUESTS", (4,))
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def _kernels() -> None:
    try:
        library()
    except NoLibrary as e:
        pytest.skip(f"no native kernels: {e}")


@pytest.mark.usefixtures("_hasty", "_kernels")
def test_native(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The default where the kernels are built."""
    folder = tmp_path / "out"
    command = ["bench", "micro", "--quick", "--threads", "1", *SHORT]
    assert main([*command, "--output-dir", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tuple(found)[: len(HEADLINE)] == HEADLINE
    assert all(math.isfinite(found[key]) and found[key] > 0 for key in HEADLINE[:-1])
    assert (found["backend"], found["dtype"], found["linear_dtype"]) == ("cpu", "bfloat16", "bfloat16")
    assert "native read" in found["ceilings"]["read_gb_s"]
    rows = [1, 4, 8, 16, 32, 64, 256]
    dtypes = ["bfloat16", "float8_e4m3fn", "int8"]
    native = [(dtype, n, "cpu") for dtype in dtypes for n in rows]
    shown = [(one["dtype"], one["rows"], one["backend"]) for one in found["linear"]]
    assert shown == native + [("bfloat16", n, "reference") for n in rows]
    assert found["gather"]["bytes"] == 4 * 256  # f32, hidden size
    assert found["gather"]["us"] > 0
    (ranks,) = found["ranks"]
    assert ranks["requests"] == 4
    assert 0 < ranks["waiting"] < 1
    assert ranks["ms"] > 0
    assert found["linear_1row_bw_frac"] == found["linear"][0]["bw_frac"]
    assert found["reference"]["linear_1row_bw_frac"] == found["linear"][21]["bw_frac"]
    uses = {name: {(op["op"], op["what"]) for op in found["ops"] if op["backend"] == name} for name in BOTH}
    assert uses["cpu"] < uses["reference"]
    assert ("feed_forward", "router and routed experts") in uses["cpu"]
    by_case = {}
    for op in found["ops"]:  # the same case, so the same work
        case = (op["op"], op["what"], op["shape"], op["rows"])
        assert by_case.setdefault(case, op["bytes"]) == op["bytes"]
    steps = {one["name"]: one for one in found["steps"]}
    assert list(steps) == STEPS
    decode, verify = steps["decode"], steps["verify 2 drafts"]
    for step in (decode, verify):
        assert {op: one["calls"] for op, one in step["ops"].items()} == {"plain_step": 1}
    assert decode["experts"] == 11 * 2  # layers, experts of a token
    assert 11 * 2 + 2 * 2 < verify["experts"] <= 13 * 8
    assert 11 * 2 < steps["prefill 64"]["experts"] <= 11 * 8
    assert found["step_1row_bw_frac"] == decode["bw_frac"]
    check_models(found)
    assert [steps[name]["rows"] for name in STEPS] == [1, 3, 64, 4, 8]
    assert decode["experts"] < steps["decode 8 requests"]["experts"] <= 11 * 8
    batch = steps["decode 8 requests"]
    assert (batch["tokens"], batch["ops"]["plain_step"]["calls"]) == (8.0, 1)
    assert (decode["dtype"], found["reference"]["step"]["dtype"]) == ("bfloat16", "float32")
    assert found["reference"]["step_1row_bw_frac"] == found["reference"]["step"]["bw_frac"]
    tables = (folder / "micro.md").read_text()
    assert "| decode, reference, float32 " in tables
    assert "| two ranks fill up a row of 1024 bytes " in tables
    assert "| requests, two ranks |" in tables
    assert "## Backends side by side" in tables
    assert "| linear headline 1024x256, int8 " in tables
    assert "## Reading and arithmetic of whole steps" in tables
    assert "## Reading and arithmetic of ops" in tables
    assert len(re.findall(r" over max \| +over sum ", tables)) == 3  # columns are as wide as the numbers
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.usefixtures("_hasty")
def test_plain_torch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps_module, "REQUESTS", (4,))
    monkeypatch.setattr(cases.Bench.cases, "__defaults__", ((1,),))
    folder = tmp_path / "out"
    command = ["bench", "micro", "--quick", "--threads", "1", "--kernel-backend", "reference"]
    assert main([*command, *SHORT, "--output-dir", str(folder)]) == 0
    out = capsys.readouterr().out
    found = json.loads(out.splitlines()[-1])
    assert tuple(found)[: len(HEADLINE)] == HEADLINE
    positive = [found[key] for key in HEADLINE[:-1]]
    positive += [found["unrest"], *found["ceilings"]["read_gb_s"].values()]
    for one in (*found["linear"], *found["ops"], *found["steps"]):
        positive += [one["gb_s"], one["bw_frac"], one["bytes"]]
        assert one["gb_s"] == pytest.approx(one["bw_frac"] * found["read_gb_s"], rel=0.01, abs=0.01)
    assert all(math.isfinite(value) and value >= 0 for value in positive)
    assert all(value > 0 for value in positive[: len(HEADLINE) - 1])
    assert math.isfinite(found["step_overhead_ms"])
    assert (found["backend"], found["dtype"], found["linear_dtype"]) == ("reference", "float32", "bfloat16")
    assert [one["rows"] for one in found["linear"]] == [1, 4, 8, 16, 32, 64, 256]
    assert {one["backend"] for one in found["ops"]} == {"reference"}
    assert found["reference"] is found["gather"] is found["ranks"] is None
    steps = {one["name"]: one for one in found["steps"]}
    assert list(steps) == ["decode", "verify 2 drafts", "prefill 64", "decode 4 requests"]
    decode, verify = steps["decode"], steps["verify 2 drafts"]
    assert (decode["rows"], decode["tokens"], verify["rows"]) == (1, 1.0, 3)
    assert 1 <= verify["tokens"] <= 3
    assert verify["bytes"] > decode["bytes"]
    # 12 layers: down, query up and out of each, and the head
    assert decode["ops"]["linear"]["calls"] == 3 * 12 + 1
    assert decode["ops"]["experts_with_shared"]["calls"] == 11
    assert found["step_1row_bw_frac"] == decode["bw_frac"]
    assert json.loads((folder / "micro.json").read_text()) == found
    check_models(found)
    assert out.count(" over max | over sum ") == 2  # of the headline linear, and of steps
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    tables = (folder / "micro.md").read_text()
    for text in (
        "## Ceilings",
        "the ceiling",
        "| decode, float32 ",
        "| overhead ",
        "| linear head 4096x256, float32 ",
    ):
        assert text in tables


def test_what_cannot_be_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "micro", "--model-path", "fake"]) == 2
    assert "has no arithmetic to measure" in capsys.readouterr().err
    assert main(["bench", "micro", "--device", "cuda"]) == 2
    assert "bench micro measures the CPU" in capsys.readouterr().err
    assert main(["bench", "micro", "--kernel-backend", "reference", "--weight-format", "Q4_K"]) == 2
    assert "--weight-format Q4_K is for the native kernels" in capsys.readouterr().err
