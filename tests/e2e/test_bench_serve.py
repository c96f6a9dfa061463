"""`nextn bench serve` on a server of its own, and on one that runs, both scripted; what it says is what the
server did. (On real engines: test_notebook.py.)"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.checkpoints import tiny_config
from support.server_process import ServerProcess, scripted_python
from support.small_tokenizer import write_small_tokenizer

from nextn.cli import main

BENCH = ["bench", "serve"]
OPTIONS = ["--load-format", "dummy", "--threads", "1", "--kv-cache-tokens", "8192"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = write_small_tokenizer(tmp_path_factory.mktemp("checkpoint") / "random")
    config = tiny_config(vocab_size=258, max_position_embeddings=4096)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


Bench = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Bench:
    """In this process."""

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        capsys.readouterr()
        code = main([*BENCH, *words])
        return subprocess.CompletedProcess(words, code, *capsys.readouterr())

    return run


def test_a_server_of_its_own(
    model: str, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCRIPT_TOKENIZER", model)
    monkeypatch.setattr(sys, "executable", scripted_python(tmp_path))
    file = tmp_path / "out.jsonl"
    load = ["--num-prompts", "6", "--output-len", "8", "--max-concurrency", "3", "--output-file", str(file)]
    done = bench("--model-path", model, *load, "--", *OPTIONS, "--speculative-num-steps", "2")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[-1] == "=" * 50
    assert "\r" not in done.stderr  # no bar: stderr is not a terminal
    record = json.loads(file.read_text())
    assert (record["completed"], record["total_output_tokens"]) == (6, 48)
    assert (record["accept_length_source"], record["accept_length_of"]) == ("nextn", "run")
    assert len(record["accept_rates"]) == 2
    assert 2.0 < record["accept_length"] <= 3.0
    assert 1.0 < record["concurrency"] <= 3.0
    assert record["mean_ttft_ms"] < record["mean_e2e_latency_ms"] < record["duration"] * 1000


def test_a_server_that_runs(scripted: ServerProcess, bench: Bench, tmp_path: Path) -> None:
    file, server = tmp_path / "out.jsonl", scripted
    common = ["--base-url", server.url + "/v1", "--output-file", str(file), "--num-prompts", "4"]
    random = ["--dataset-name", "random", "--random-input-len", "30", "--random-output-len", "6"]
    before = server.metrics()
    done = bench(*common, *random, "--random-range-ratio", "1")
    assert done.returncode == 0, done.stderr
    after = server.metrics()
    record = json.loads(file.read_text().splitlines()[-1])
    # The tokenizer is the one that the server names; a prompt of ids is exactly so long.
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (120, 24)
    served = {name: after[name] - before[name] for name in after if name.endswith("_tokens_total")}
    assert served["nextn:prompt_tokens_total"] == 150  # and the warm-up's
    assert served["nextn:generation_tokens_total"] == 30
    assert record["accept_length"] == 3.0  # three tokens a step
    assert "Accept length" in done.stdout

    chat = bench(*common, *random, "--backend", "sglang-oai-chat", "--random-range-ratio", "1")
    assert chat.returncode == 0, chat.stderr
    assert json.loads(file.read_text().splitlines()[-1])["total_output_tokens"] == 24

    native = bench(*common, *random, "--backend", "sglang", "--random-range-ratio", "1")
    assert native.returncode == 0, native.stderr
    record = json.loads(file.read_text().splitlines()[-1])
    assert (record["total_input_tokens"], record["total_output_tokens"]) == (120, 24)

    too_long = bench(*common, "--output-len", "1020", "--warmup-requests", "0")
    assert too_long.returncode == 1
    assert "  HTTP 400:                              4         \n" in too_long.stdout
    assert "HTTP 400, the first: the server answered with an error (400)" in too_long.stderr
    assert json.loads(file.read_text().splitlines()[-1])["errors_by_kind"] == {"HTTP 400": 4}


def test_a_server_that_does_not_come_up(model: str, bench: Bench) -> None:
    done = bench("--model-path", model, "--", "--pipeline-parallel-size", "8")
    assert done.returncode != 0
    assert "--pipeline-parallel-size 8 is not supported" in done.stderr
    assert done.stdout == ""
