"""A rank is killed or stopped while it shares experts with others: before it offers its rows, before it
returns results, while experts move. All processes end with an error, and nothing is left.
`support.rank_faults` describes the cases."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest
from support.all_cases import few_or_all
from support.native_kernels import built_levels

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

FEW = ["engines-dispatch-SIGKILL", "memory-moved-SIGSTOP", "sockets-combine-SIGKILL", "groups-shared-SIGKILL"]
POINTS = ("dispatch", "shared", "combine", "results", "counts", "moving", "moved")
ALL = [
    f"{how}-{point}-{end}"
    for how in ("memory", "sockets", "groups", "engines")
    for point in POINTS
    for end in ("SIGKILL", "SIGSTOP")
    if how != "engines" or end == "SIGKILL"  # there is no supervisor, which would end a stopped engine
]
CASES = few_or_all(FEW, [case for case in ALL if case not in FEW])


@pytest.fixture(scope="module")
def found() -> dict[str, dict[str, Any]]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "support.rank_faults", *CASES]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=120 * len(CASES))
    assert done.returncode == 0, done.stderr
    results = map(json.loads, done.stdout.splitlines())
    return {result["case"]: result for result in results}


@pytest.mark.parametrize("case", CASES)
def test_all_end(found: dict[str, dict[str, Any]], case: str) -> None:
    result = found[case]
    assert result["seconds"] is not None, result
    assert result["seconds"] < 60  # less than 1 s, or 5 s for a stopped rank, on a machine that is not busy
    assert any(
        re.search(r"(rank|engine) .*(has ended|does not answer|is stopped)", line) for line in result["said"]
    )
    assert (result["left"], result["files"]) == (0, 0), result
