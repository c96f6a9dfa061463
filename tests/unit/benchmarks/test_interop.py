"""benchmarks/interop: ratios, noise and verdicts by hand; one order of prompts for every client."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.script_modules import script_modules

FOLDER = Path(__file__).parents[3] / "benchmarks" / "interop"


@pytest.fixture
def interop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    yield from script_modules(
        monkeypatch, FOLDER, ("environments", "clients", "comparison", "server_figures")
    )


def rows(interop: Any, figure: str, **said: list[float]) -> list[Any]:
    """The server counted 10 in every run."""
    run = interop.comparison.Run
    rounds = {
        name: [run({figure: value}, {figure: 10.0}) for value in values] for name, values in said.items()
    }
    return list(interop.comparison.compare(rounds))


def test_ratios_and_noise(interop: Any) -> None:
    (row,) = rows(interop, "ttft_ms", nextn=[10.0, 10.2, 10.4], vllm=[10.8, 10.6, 11.7])
    assert row.medians == {"nextn": 10.2, "vllm": 10.8}
    assert row.ratios == pytest.approx({"nextn": 1.02, "vllm": 1.08})
    assert row.noise == pytest.approx(11.7 / 10.8 - 1)
    assert "| TTFT ms | 10.2 (1.02) | - | 10.8 (1.08) | 8% | same |" in interop.comparison.table(
        [row], ["nextn", "sglang", "vllm"]
    )


@pytest.mark.parametrize(
    ("figure", "ours", "theirs", "verdict"),
    [
        ("ttft_ms", [10.0], [10.4], "same"),
        ("ttft_ms", [10.0], [10.6], "differs"),
        ("ttft_ms", [10.0], [9.4], "differs"),
        ("ttft_ms", [10.0], [10.4, 10.7, 11.0], "same"),  # 7 % are within 5 % and the noise of 2.8 %
        ("ttft_ms", [10.0], [5.0, 10.0, 15.0], "too noisy"),
        ("requests", [10.0], [10.0], "same"),
        ("requests", [10.0], [11.0], "differs"),
        ("requests", [10.0, 11.0], [10.0, 10.0], "differs"),
    ],
)
def test_verdicts(interop: Any, figure: str, ours: list[float], theirs: list[float], verdict: str) -> None:
    (row,) = rows(interop, figure, nextn=ours, vllm=theirs)
    assert row.verdict == verdict


def test_a_figure_that_we_alone_have_has_no_row(interop: Any) -> None:
    assert rows(interop, "ttft_ms", nextn=[1.0]) == []


def test_what_the_server_counted(interop: Any) -> None:
    before = {"num_requests_total": 1.0, "generation_tokens_total": 10.0, "spec_verify_steps_total": 5.0}
    new = {
        "num_requests_total": 4, "generation_tokens_total": 40, "spec_verify_steps_total": 18,
        "spec_draft_tokens_total": 36, "prompt_tokens_total": 100, "e2e_request_latency_seconds_sum": 8,
        "e2e_request_latency_seconds_count": 4, "time_to_first_token_seconds_sum": 2,
        "time_to_first_token_seconds_count": 4, "inter_token_latency_seconds_sum": 5.4,
        "inter_token_latency_seconds_count": 36,
    }  # fmt: skip
    after = {name: before.get(name, 0.0) + value for name, value in new.items()}
    assert interop.server_figures.counted(before, after, concurrency=2) == pytest.approx(
        {
            "requests": 4, "input_tokens": 100, "output_tokens": 40, "output_throughput": 10, "e2e_ms": 2000,
            "ttft_ms": 500, "tpot_ms": 150, "step_ms": 300, "accept_length": 2,
        }
    )  # fmt: skip


def test_sglang_s_shuffle_restores_the_order(interop: Any, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    interop.clients.Load(12, 4, 8).write(file)
    prompts = [json.loads(line)["prompt"] for line in file.read_text().splitlines()]
    lines = file.with_suffix(interop.clients.SHUFFLED).read_text().splitlines()
    shuffled = [json.loads(line)["conversations"][0]["content"] for line in lines]
    assert shuffled != prompts
    random.Random(interop.clients.SGLANG_SEED).shuffle(shuffled)
    assert shuffled == prompts
