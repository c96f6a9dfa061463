from __future__ import annotations

import os
from pathlib import Path

import pytest

from nextn.distributed.numa import cores_of, nodes, parsed


@pytest.mark.parametrize(
    ("text", "cores"), [("0-3\n", {0, 1, 2, 3}), ("0,2,5-6\n", {0, 2, 5, 6}), ("\n", set()), ("7", {7})]
)
def test_lists_of_cores(text: str, cores: set[int]) -> None:
    assert parsed(text) == cores


def test_nodes_are_those_with_cores_that_may_be_used(tmp_path: Path) -> None:
    own = sorted(os.sched_getaffinity(0))
    for name, cores in (
        ("node0", f"{own[0]}"),
        ("node1", "4000-4010"),
        ("node10", f"{own[-1]}"),
        ("node2", ""),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cpulist").write_text(cores)
    assert nodes(tmp_path) == [{own[0]}, {own[-1]}]
    assert nodes(tmp_path / "nowhere") == []


def test_ranks_are_dealt_out_evenly() -> None:
    two = [frozenset({0, 1}), frozenset({2, 3})]
    assert [cores_of(rank, 4, two) for rank in range(4)] == [two[0], two[0], two[1], two[1]]
    assert [cores_of(rank, 2, two) for rank in range(2)] == two
    four = [frozenset({n}) for n in range(4)]
    assert [cores_of(rank, 2, four) for rank in range(2)] == [{0, 1}, {2, 3}]
    assert [cores_of(rank, 3, four) for rank in range(3)] == [{0}, {1}, {2, 3}]
    assert cores_of(0, 1, two) is None, "all cores are its own"


def test_one_node_leaves_nothing_to_choose() -> None:
    assert cores_of(1, 2, [frozenset({0, 1})]) is None
    assert cores_of(1, 2, []) is None
