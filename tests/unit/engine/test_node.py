"""What a machine does when its ranks have ended: the exit codes decide."""

from __future__ import annotations

import pytest

from nextn.config import EngineConfig
from nextn.engine import node
from nextn.engine.exit_codes import FAILED, LET_GO, LOST, REFUSED

KILLED = -9
CONFIG = EngineConfig(tp_size=4, nnodes=2, node_rank=1, dist_init_addr="127.0.0.1:5000")


@pytest.mark.parametrize(
    ("runs", "code"),
    [
        ([{LET_GO}], 0),
        ([{LET_GO, KILLED}], 0),  # one took too long to end, and was killed
        ([{LOST}, {LOST, KILLED}, {FAILED, LOST}, {LET_GO}], 0),
        ([{LOST}, {REFUSED, LOST}], 1),
    ],
)
def test_when_ranks_are_started_again(
    runs: list[set[int]], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(runs)
    monkeypatch.setattr(node, "_run", lambda config: left.pop(0))
    monkeypatch.setattr(node.time, "sleep", lambda seconds: None)
    assert node.run_node(CONFIG) == code
    assert left == []
