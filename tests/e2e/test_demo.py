"""`nextn demo --quick` as people run it: two real servers, real prompts, every text compared."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from support.checkpoints import random_tensors, tiny_config, write_checkpoint
from support.processes import session
from support.server_process import until
from support.small_tokenizer import write_small_tokenizer
from support.terminal import Terminal

import nextn
from nextn.cli import main
from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

EMBEDDED = Path(nextn.__file__).parent / "data" / "nextn-tiny"
DEMO = [sys.executable, "-m", "nextn", "demo", "--quick"]


@pytest.fixture(scope="module")
def small_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random weights and a tokenizer of single bytes."""
    config = tiny_config(vocab_size=258, max_position_embeddings=4096)
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1), dtype=torch.float32)
    folder = write_checkpoint(tmp_path_factory.mktemp("model"), config, tensors)
    return write_small_tokenizer(folder)


def check_run(done: subprocess.CompletedProcess[str], out: Path) -> dict[str, Any]:
    """The demo's JSON, after looking at all that it printed and wrote. With two drafts."""
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    table = lines[: lines.index("61 texts of 16 prompts compared, 0 differ")]
    assert max(map(len, table)) <= 100
    assert "\x1b" not in done.stdout + done.stderr
    assert not any(line.startswith("{") for line in lines)
    assert lines[-1].startswith("  curl http://127.0.0.1:30000/v1/completions ")
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert (out / "latency-throughput.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (out / "report.html").read_text().rstrip().endswith("</html>")
    assert found["texts"] == {"prompts": 16, "compared": 61, "differ": 0, "first_difference": None}
    slower = [p["concurrency"] for p in found["points"] if p["ratio"] < 0.995]
    for concurrency in slower:  # the ratio in the file is rounded, and would be twice
        assert any(re.match(rf"\d\.\d\dx at {concurrency}: ", line) for line in lines)
    assert [p["concurrency"] for p in found["points"]] == [1, 4, 16]
    for point in found["points"]:
        assert point["ratio"] > 0
        assert len(point["acceptance"]) == 2
        assert 1 <= point["accept_length"] <= 3
        for side in ("without_mtp", "with_mtp"):
            (only,) = point[side]["rounds"]
            assert only["output_tokens"] == point["prompts"] * found["max_tokens"]
            assert 0 < point[side]["mean_tpot_ms"] < point[side]["mean_ttft_ms"] + only["seconds"] * 1000
    assert "Traceback" not in done.stderr
    return found


def test_demo_in_a_terminal(small_model: Path, tmp_path: Path) -> None:
    """It shows a bar, then a table in colours as wide as the terminal, and the commands to go on with. The
    texts are noise, broken characters included."""
    words = [*DEMO[3:], "--model-path", str(small_model), "--max-tokens", "8", "--num-prompts", "4"]
    options = ["--threads", "1", "--output-dir", "out"]
    environment = {"VIRTUAL_ENV": sys.prefix}
    with Terminal([*words, *options], columns=80, environment=environment, folder=tmp_path) as terminal:
        assert terminal.wait(120) == 0
    text = terminal.text()
    assert "━" in text
    table = text.rpartition(" on cpu, 1 thread; ")[2]
    shown = table.partition("4 prompts compared")[0].splitlines()[1:]
    assert max(map(len, shown)) <= 80
    assert "by depth" in table
    assert "results.json" in table
    assert f"\n  nextn serve --model-path {small_model}\n  curl http://" in table
    assert '{"model": ' not in table.partition("curl")[0]


@pytest.mark.slow
@pytest.mark.skipif(not (EMBEDDED / "config.json").exists(), reason="the embedded model is not there")
def test_demo_on_the_embedded_model(tmp_path: Path) -> None:
    """With two drafts: how many of them hold does not depend on how busy the machine is."""
    command = [*DEMO, "--speculative-num-steps", "2", "--threads", "1", "--max-tokens", "12"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=tmp_path)
    found = check_run(done, tmp_path / "nextn-demo")
    assert found["model"] == "nextn-tiny"
    assert found["engine"]["device"] == "cpu"
    assert found["engine"]["threads"] == 1
    assert "concurrency 16, with MTP, round 1 of 1: 16 texts" in done.stderr
    assert "\r" not in done.stderr  # no bar: stderr is not a terminal
    assert all(point["accept_length"] > 1.5 for point in found["points"])


@pytest.mark.parametrize(("number", "when"), [("SIGINT", "it starts"), ("SIGTERM", "it measures")])
def test_interrupted_it_leaves_nothing_running(
    number: str, when: str, small_model: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole group, SIGTERM the demo alone."""
    process = subprocess.Popen(
        [*DEMO, "--model-path", str(small_model), "--max-tokens", "2000", "--output-dir", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        if when == "it starts":
            until(lambda: len(session(process.pid)) >= 3)  # the demo, a server, an engine
            os.killpg(process.pid, signal.Signals[number])
        else:
            log = tmp_path / "server-with-mtp.log"
            until(lambda: log.exists() and "nextn is ready" in log.read_text(), seconds=60)
            time.sleep(0.3)
            assert len(session(process.pid)) >= 5  # the demo, two servers, two engines
            os.kill(process.pid, signal.Signals[number])
        out, err = process.communicate(timeout=30)
        assert process.returncode == 130
        assert out == ""
        assert "Traceback" not in err
        until(lambda: not session(process.pid))
    finally:
        for pid in session(process.pid):
            os.kill(pid, signal.SIGKILL)
        process.communicate()


def test_a_server_that_does_not_come_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["demo", "--quick", "--model-path", str(tmp_path / "no-model")]
    assert main([*words, "--output-dir", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert "--- last lines of the server without MTP" in err
    assert "no-model" in err.partition("--- last lines")[2]
    assert err.splitlines()[-1].startswith("nextn demo: error: the server without MTP ended while")
    assert out == ""
