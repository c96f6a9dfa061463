"""A server whose ranks are killed, by the short form of benchmarks/kill_ranks.py: what is left. Time does
not count. Its texts: test_replica_texts.py. What it refuses: test_nodes.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.native_kernels import built_levels

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
ROOT = Path(__file__).parents[2]


def test_ranks_that_are_killed() -> None:
    """One is killed while a prompt is computed, and one of the next is stopped while it loads."""
    words = [sys.executable, str(ROOT / "benchmarks" / "kill_ranks.py")]
    words += ["--kills", "1", "--phase", "load", "--stops", "1"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
