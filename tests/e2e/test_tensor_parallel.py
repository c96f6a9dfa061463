"""A server of several ranks: what it refuses, and what is left when ranks are killed (the short form of
benchmarks/kill_ranks.py; how long it takes is not looked at). Its texts: test_replica_texts.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.native_kernels import built_levels
from support.server_process import ServerProcess, until

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")
ROOT = Path(__file__).parents[2]


def test_a_size_that_cannot_be_ends_the_start_with_one_error() -> None:
    server = ServerProcess(["-m", "nextn", "serve", "--port", "0", "--tp-size", "3"])
    assert server.wait(120) == 1
    said = [line for line in server.stderr if "heads cannot be divided" in line]
    assert len(said) == 1, server.stderr
    assert not any("Traceback" in line for line in server.stderr)
    until(lambda: server.session() == [])


def test_ranks_that_are_killed() -> None:
    """By this seed rank 1 while it works, then rank 0 while nobody asks."""
    words = [sys.executable, str(ROOT / "benchmarks" / "kill_ranks.py"), "--kills", "2", "--seed", "16"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
