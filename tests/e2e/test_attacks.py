"""benchmarks/attacks.py in its short form: one client's requests that must not harm another's. Nothing here
depends on speed; whether the other client is slowed down is measured by hand, in the long form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "attacks.py"


@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_short_form() -> None:
    done = subprocess.run([sys.executable, SCRIPT, "--short"], capture_output=True, text=True)
    assert done.stdout, done.stderr
    attacks = json.loads(done.stdout)["attacks"]
    failed = {name: found["failures"] for name, found in attacks.items() if not found["held"]}
    assert failed == {}
    assert done.returncode == 0, done.stderr
    assert len(attacks) == 28
    assert attacks["two-keys"]["ended"].keys() <= {"error 400", "error 401"}
