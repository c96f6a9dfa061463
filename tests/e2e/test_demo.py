"""`nextn demo --quick` as people run it: two real servers, real prompts, every text compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.processes import session
from support.server_process import scripted_python, until
from support.terminal import Terminal

import nextn
from nextn.cli import main

EMBEDDED = Path(nextn.__file__).parent / "data" / "nextn-tiny"


@pytest.mark.slow
@pytest.mark.skipif(not (EMBEDDED / "config.json").exists(), reason="the embedded model is not there")
def test_demo_in_a_terminal(tmp_path: Path) -> None:
    """It shows a bar, then a table in colours as wide as the terminal, and the commands to go on with. (What
    it prints elsewhere: tests/unit/bench/test_demo.py.) With two drafts: how many of them hold does not
    depend on how busy the machine is."""
    words = ["demo", "--quick", "--speculative-num-steps", "2", "--threads", "1", "--max-tokens", "12"]
    environment = {"VIRTUAL_ENV": sys.prefix}
    with Terminal(
        [*words, "--num-prompts", "4"], columns=80, environment=environment, folder=tmp_path
    ) as terminal:
        assert terminal.wait(280) == 0
    text = terminal.text()
    assert "━" in text
    table = text.rpartition(" on cpu, 1 thread; ")[2]
    shown = table.partition("17 texts of 4 prompts compared, 0 differ")[0].splitlines()[1:]
    assert max(map(len, shown)) <= 80
    assert "by depth" in table
    assert "results.json" in table
    assert "\n  nextn serve\n  curl http://" in table
    assert '{"model": ' not in table.partition("curl")[0]
    check_files(tmp_path / "nextn-demo")


def check_files(out: Path) -> None:
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    assert found["model"] == "nextn-tiny"
    assert (found["engine"]["device"], found["engine"]["threads"]) == ("cpu", 1)
    assert found["texts"] == {"prompts": 4, "compared": 17, "differ": 0, "first_difference": None}
    assert [p["concurrency"] for p in found["points"]] == [1, 4, 16]
    for point in found["points"]:
        assert point["ratio"] > 0
        assert len(point["acceptance"]) == 2
        assert 1.5 < point["accept_length"] <= 3
        for side in ("without_mtp", "with_mtp"):
            (only,) = point[side]["rounds"]
            assert only["output_tokens"] == point["prompts"] * found["max_tokens"]
            assert 0 < point[side]["mean_tpot_ms"] < point[side]["mean_ttft_ms"] + only["seconds"] * 1000
    assert (out / "latency-throughput.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert (out / "report.html").read_text().rstrip().endswith("</html>")


@pytest.mark.parametrize(("number", "when"), [("SIGINT", "it starts"), ("SIGTERM", "it measures")])
def test_interrupted_it_leaves_nothing_running(
    number: str, when: str, tokenizer_folder: Path, tmp_path: Path
) -> None:
    """Ctrl-C reaches the whole group, SIGTERM the demo alone. The servers have the scripted engine."""
    python = scripted_python(tmp_path, "--context-length", "16384")
    program = f"import sys; sys.executable = {python!r}; from nextn.cli import main; sys.exit(main())"
    words = ["--model-path", str(tokenizer_folder), "--max-tokens", "2000", "--output-dir", str(tmp_path)]
    process = subprocess.Popen(
        [sys.executable, "-c", program, "demo", "--quick", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env={**os.environ, "SCRIPT_TOKENIZER": str(tokenizer_folder), "SCRIPT_STEP": "0.05"},
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


def test_a_server_that_does_not_come_up(
    tmp_path: Path,
    tokenizer_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SCRIPT_TOKENIZER", str(tokenizer_folder))
    monkeypatch.setattr(sys, "executable", scripted_python(tmp_path, "--no-such-option"))
    assert main(["demo", "--quick", "--output-dir", str(tmp_path / "out")]) == 2
    out, err = capsys.readouterr()
    assert "--- last lines of the server without MTP" in err
    assert "--no-such-option" in err.partition("--- last lines")[2]
    assert err.splitlines()[-1].startswith("nextn demo: error: the server without MTP ended while")
    assert out == ""
