"""Tools of others against our servers, where their environments are: benchmarks/interop/check.py by tool.

NEXTN_INTEROP_ENVS=.interop pytest tests/e2e/test_interop.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = Path(__file__).parents[2] / "benchmarks" / "interop" / "check.py"
ENVS = os.environ.get("NEXTN_INTEROP_ENVS")
TOOLS = ("openai", "litellm", "lm-eval", "vllm", "sglang", "guidellm", "sglang-router", "smg", "vllm-router")


@pytest.mark.slow
@pytest.mark.skipif(
    ENVS is None, reason="NEXTN_INTEROP_ENVS names no folder of benchmarks/interop/environments.py"
)
@pytest.mark.parametrize("tool", TOOLS)
def test_what_is_known_to_work_works(tool: str) -> None:
    assert ENVS is not None
    if not (Path(ENVS) / tool / "bin" / "python").is_file():
        pytest.skip(f"{tool} is not in {ENVS}")
    command = [sys.executable, CHECK, tool, "--envs", ENVS]
    done = subprocess.run(command, text=True, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
