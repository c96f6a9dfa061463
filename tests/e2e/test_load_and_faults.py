"""benchmarks/load_and_faults.py in its short form: a real engine on the fake model, in which a wrong slot or
a stale entry would change a text. The long form, with its measurements, is run by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.all_cases import few_or_all

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "load_and_faults.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_short_form() -> None:
    names = few_or_all(
        ["vanish", "bad-network", "malformed", "engine-killed", "pages", "soak"], ["streams", "slow-readers"]
    )
    options = ["--model-path", "fake:1,0.75", "--seconds", "0.4", "--soak", "0.4", "--clients", "8"]
    options += ["--scenario", *names]
    done = subprocess.run([sys.executable, SCRIPT, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    scenarios = json.loads(done.stdout)["scenarios"]
    assert set(scenarios) == set(names)
    assert all(found["ended"]["whole"] > 0 for found in scenarios.values())
    assert scenarios["vanish"]["ended"]["left"] > 0
    assert scenarios["bad-network"]["ended"]["broken"] > 0
    assert scenarios["malformed"]["ended"]["error"] > 4
    assert scenarios["engine-killed"]["codes"]["engine_dead"] > 0
