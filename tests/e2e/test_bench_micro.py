"""`nextn bench micro` on the embedded model, with as few samples as it can do with: structure, no timings."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from nextn.bench.dev.micro import run
from nextn.bench.dev.micro.ceilings import make_ceilings
from nextn.bench.dev.micro.run import Effort
from nextn.cli import main
from nextn.ops.cpu.library import NoLibrary, library

HEADLINE = (
    "read_gb_s", "onednn_gflop_s", "linear_1row_bw_frac", "linear_4row_over_1row",
    "linear_256row_over_onednn", "step_1row_bw_frac", "step_overhead_ms",
)  # fmt: skip
BOTH = ("cpu", "reference")


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threads = torch.get_num_threads()
    monkeypatch.setattr(run, "QUICK", Effort(rounds=3, steps=3, seconds=0.0))
    monkeypatch.setattr(run, "make_ceilings", functools.partial(make_ceilings, dram=1 << 24, squares=(64,)))
    # Weights from 40 MB: there are caches of 300 MiB, for which it takes gigabytes.
    monkeypatch.setattr(run, "cache_bytes", lambda level: 1 << 20)
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
    assert main(["bench", "micro", "--quick", "--threads", "1", "--output-dir", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert tuple(found)[: len(HEADLINE)] == HEADLINE
    assert all(math.isfinite(found[key]) and found[key] > 0 for key in HEADLINE[:-1])
    assert (found["backend"], found["dtype"], found["linear_dtype"]) == ("cpu", "bfloat16", "bfloat16")
    assert "native read" in found["ceilings"]["read_gb_s"]
    rows = [1, 2, 4, 8, 64, 256]
    dtypes = ["bfloat16", "float8_e4m3fn", "int8"]
    native = [(dtype, n, "cpu") for dtype in dtypes for n in rows]
    shown = [(one["dtype"], one["rows"], one["backend"]) for one in found["linear"]]
    assert shown == native + [("bfloat16", n, "reference") for n in rows]
    assert found["gather"]["bytes"] == 4 * 256  # f32, hidden size
    assert found["gather"]["us"] > 0
    assert found["linear_1row_bw_frac"] == found["linear"][0]["bw_frac"]
    assert found["reference"]["linear_1row_bw_frac"] == found["linear"][18]["bw_frac"]
    uses = {name: {(op["op"], op["what"]) for op in found["ops"] if op["backend"] == name} for name in BOTH}
    assert uses["cpu"] < uses["reference"]
    assert ("feed_forward", "router and routed experts") in uses["cpu"]
    by_case = {}
    for op in found["ops"]:  # the same case, so the same work
        case = (op["op"], op["what"], op["shape"], op["rows"])
        assert by_case.setdefault(case, op["bytes"]) == op["bytes"]
    steps = {one["name"]: one for one in found["steps"]}
    assert list(steps) == ["decode", "verify 2 drafts", "prefill 512"]
    decode, verify = steps["decode"], steps["verify 2 drafts"]
    for step in (decode, verify):
        assert {op: one["calls"] for op, one in step["ops"].items()} == {"plain_step": 1}
    assert decode["experts"] == 11 * 2  # layers, experts of a token
    assert 11 * 2 + 2 * 2 < verify["experts"] <= 13 * 8
    assert 11 * 2 < steps["prefill 512"]["experts"] <= 11 * 8
    assert found["step_1row_bw_frac"] == decode["bw_frac"]
    assert (decode["dtype"], found["reference"]["step"]["dtype"]) == ("bfloat16", "float32")
    assert found["reference"]["step_1row_bw_frac"] == found["reference"]["step"]["bw_frac"]
    tables = (folder / "micro.md").read_text()
    assert "| decode, reference, float32 " in tables
    assert "| two ranks fill up a row of 1024 bytes " in tables
    assert "## Backends side by side" in tables
    assert "| linear headline 4096x2048, int8 " in tables
    assert (folder / "roofline.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


@pytest.mark.usefixtures("_hasty")
def test_plain_torch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "out"
    command = ["bench", "micro", "--quick", "--threads", "1", "--kernel-backend", "reference"]
    assert main([*command, "--output-dir", str(folder)]) == 0
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
    assert [one["rows"] for one in found["linear"]] == [1, 2, 4, 8, 64, 256]
    assert {one["backend"] for one in found["ops"]} == {"reference"}
    assert found["reference"] is found["gather"] is None
    steps = {one["name"]: one for one in found["steps"]}
    assert list(steps) == ["decode", "verify 2 drafts", "prefill 512"]
    decode, verify = steps["decode"], steps["verify 2 drafts"]
    assert (decode["rows"], decode["tokens"], verify["rows"]) == (1, 1.0, 3)
    assert 1 <= verify["tokens"] <= 3
    assert verify["bytes"] > decode["bytes"]
    # 12 layers: down, query up and out of each, and the head
    assert decode["ops"]["linear"]["calls"] == 3 * 12 + 1
    assert decode["ops"]["experts_with_shared"]["calls"] == 11
    assert found["step_1row_bw_frac"] == decode["bw_frac"]
    assert json.loads((folder / "micro.json").read_text()) == found
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
