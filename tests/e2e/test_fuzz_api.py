"""benchmarks/fuzz/api.py in a short form, where schemathesis is installed."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCHEMATHESIS = shutil.which("schemathesis") or shutil.which(ROOT / ".fuzz" / "bin" / "schemathesis")


@pytest.mark.skipif(SCHEMATHESIS is None, reason="no schemathesis: benchmarks/fuzz/install.sh brings it")
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
def test_short_form() -> None:
    command = [sys.executable, ROOT / "benchmarks" / "fuzz" / "api.py", "--schemathesis", str(SCHEMATHESIS)]
    options = ["--max-examples", "4", "--phases", "fuzzing"]
    done = subprocess.run([*command, *options], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    statuses = json.loads(done.stdout)["statuses"]
    assert len(statuses) > 20
    assert {"200", "400"} <= {status for counts in statuses.values() for status in counts}
