"""Placements of experts: what they hold, and plans worked out by hand, for groups and nodes too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.distributed.eplb import balanced
from nextn.distributed.placement import Move, Placement, keep_slots, moves, shard_loads, utilisation

# EPLB's README plans these for 16 physical experts on 8 GPUs of 2 nodes, with 4 groups.
EXAMPLE = np.array(
    [
        [90, 132, 40, 61, 104, 165, 39, 4, 73, 56, 183, 86],
        [20, 107, 104, 64, 19, 197, 187, 157, 172, 86, 16, 27],
    ]
)
PLANNED = [
    [5, 6, 5, 7, 8, 4, 3, 4, 10, 9, 10, 2, 0, 1, 11, 1],
    [7, 10, 6, 8, 6, 11, 8, 9, 2, 4, 5, 1, 5, 0, 3, 1],
]


def shards_of(placement: Placement, shards: int) -> list[list[list[int]]]:
    return [np.sort(row.reshape(shards, -1)).tolist() for row in placement.physical]


def of(*rows: list[int]) -> Placement:
    return Placement(np.array(rows), max(map(max, rows)) + 1)


def test_both_directions() -> None:
    placement = of([0, 1, 2, 0], [1, 0, 2, 2])
    assert placement.logical.tolist() == [[[0, 3], [1, -1], [2, -1]], [[1, -1], [0, -1], [2, 3]]]
    assert placement.replicas.tolist() == [[2, 1, 1], [1, 1, 2]]
    assert (placement.layers, placement.slots, placement.experts) == (2, 4, 3)
    assert {a.dtype for a in (placement.physical, placement.logical, placement.replicas)} == {
        np.dtype("int32")
    }
    assert placement == of([0, 1, 2, 0], [1, 0, 2, 2]) != of([0, 1, 2, 0], [1, 0, 2, 1])
    assert hash(placement) == hash(of([0, 1, 2, 0], [1, 0, 2, 2]))
    assert placement != "placement"


def test_arrays_are_read_only() -> None:
    own = np.array([[0, 1]])
    placement = Placement(own, 2)
    own[0, 0] = 1
    assert placement.physical.tolist() == [[0, 1]]
    for array in (placement.physical, placement.logical, placement.replicas):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


def test_trivial() -> None:
    assert Placement.trivial(2, 3).physical.tolist() == [[0, 1, 2]] * 2
    assert Placement.trivial(1, 3, 5).physical.tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]


@pytest.mark.parametrize(
    ("physical", "experts", "message"),
    [
        ([[0, 1, 2], [0, 1, 1]], 3, "layer 1 has no slot for expert 2"),
        ([[0, 1]], 3, "layer 0 has no slot for expert 2"),
        ([[0, 1], [2, 1]], 2, r"layer 1 has expert 2 in slot 0; the model's experts are 0..1"),
        ([[0, -1]], 2, "layer 0 has expert -1 in slot 1"),
        ([[2**32, 1]], 2, "layer 0 has expert 4294967296 in slot 0"),
        ([0, 1], 2, "a row for each layer"),
        ([[]], 2, "a row for each layer"),
        ([[0.0, 1.0]], 2, "whole numbers"),
    ],
)
def test_wrong_placements(physical: list[object], experts: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Placement(np.array(physical), experts)


def test_the_example_of_eplb() -> None:
    """Shards are as in its README; within a shard our slots ascend."""
    assert shards_of(balanced(EXAMPLE, 16, 8, 2, 4), 8) == shards_of(of(*PLANNED), 8)


def imbalance(counts: Any, placement: Placement, shards: int) -> Any:
    return 1 / utilisation(shard_loads(counts, placement, shards))


@pytest.mark.parametrize(("spare", "shards"), [(0, 2), (0, 4), (2, 2), (8, 4), (8, 8)])
def test_equal_counts(spare: int, shards: int) -> None:
    """Spare slots go to the lowest experts, so nothing is better than the trivial placement."""
    for each in (0, 5):
        counts = np.full((2, 8), each)
        placement = balanced(counts, 8 + spare, shards)
        assert placement == Placement.trivial(2, 8, spare)
        assert utilisation(shard_loads(counts, placement, shards)).tolist() == [1, 1]


def test_a_hot_expert_without_spare_slots() -> None:
    placement = balanced(np.array([[8, 1, 1, 1]]), 4, 2)
    assert placement == Placement.trivial(1, 4)  # no plan is better: one other expert has to go with it
    placement = balanced(np.array([[8, 6, 2, 1]]), 4, 2)
    assert placement.physical.tolist() == [[0, 3, 1, 2]]
    assert shard_loads(np.array([[8, 6, 2, 1]]), placement, 2).tolist() == [[9, 8]]


def test_a_hot_expert_with_spare_slots() -> None:
    counts = np.array([[8, 1, 1, 1, 1, 1, 1, 2]])
    two = balanced(counts, 10, 2)
    # Expert 0 gets the first spare slot, with 8 rows. A third replica of it would lie beside another, so the
    # second slot is for expert 7, with 2 rows.
    assert two.replicas.tolist() == [[2, 1, 1, 1, 1, 1, 1, 2]]
    assert shards_of(two, 2) == [[[0, 1, 3, 5, 7], [0, 2, 4, 6, 7]]]
    assert utilisation(shard_loads(counts, two, 2)).tolist() == [1]
    eight = balanced(counts, 16, 4)
    assert eight.replicas[0, 0] == 4
    assert shards_of(eight, 4)[0] == [sorted({*s}) for s in shards_of(eight, 4)[0]]
    assert imbalance(counts, eight, 4)[0] < imbalance(counts, Placement.trivial(1, 8, 8), 4)[0]


def test_more_slots_than_experts_times_shards() -> None:
    """Then a shard has to hold an expert twice."""
    placement = balanced(np.array([[3, 1]]), 6, 2)
    assert placement.replicas.tolist() == [[3, 3]]
    assert balanced(np.array([[7]]), 4, 2).physical.tolist() == [[0, 0, 0, 0]]


def test_a_group_stays_in_its_node() -> None:
    """Groups 0 and 1 are hot: each goes to a node of its own, and so do the replicas of its experts."""
    counts = np.array([[90, 10, 80, 20, 1, 2, 3, 4]])
    placement = balanced(counts, 12, 4, nodes=2, groups=4)
    nodes = [{expert // 2 for expert in row} for row in placement.physical.reshape(2, -1).tolist()]
    assert nodes == [{0, 3}, {1, 2}]  # 100 rows and 7, 100 and 3
    assert balanced(counts, 12, 4, nodes=2, groups=3) == balanced(counts, 12, 4)  # the global policy
    assert balanced(counts, 8, 4, nodes=2, groups=4).physical.tolist() == [[0, 6, 1, 7, 2, 4, 3, 5]]
    even = np.ones((1, 8), int)
    assert balanced(even, 8, 4, nodes=2, groups=4) == Placement.trivial(1, 8)


def test_utilisation() -> None:
    counts = np.array([[6, 2, 4], [0, 0, 0]])
    placement = of([0, 1, 2, 0], [0, 1, 2, 0])
    assert shard_loads(counts, placement, 2).tolist() == [[5, 7], [0, 0]]
    assert utilisation(shard_loads(counts, placement, 2)).tolist() == [6 / 7, 1]
    assert imbalance(counts, placement, 2).tolist() == [7 / 6, 1]


def test_moves() -> None:
    old, new = of([0, 1, 2, 3, 0, 1], [0, 1, 2, 3, 0, 1]), of([1, 0, 3, 2, 0, 2], [0, 1, 2, 3, 0, 1])
    # shards 0 1 2 | 3 0 1: slot 5's 2 is on the other shard, slot 0's 1 on its own
    assert moves(old, new, 2) == [[Move(0, 1), Move(1, 0), Move(2, 3), Move(3, 2), Move(5, 2)], []]
    assert moves(of([0, 1, 2, 1]), of([0, 2, 1, 0]), 2) == [[Move(1, 2), Move(2, 3), Move(3, 0)]]


def test_keep_slots() -> None:
    old, new = of([3, 1, 2, 0, 0, 1]), of([1, 2, 0, 0, 1, 3])
    kept = keep_slots(old, new, 2)
    assert kept.physical.tolist() == [[0, 1, 2, 0, 3, 1]]
    assert shards_of(kept, 2) == shards_of(new, 2)
    assert moves(old, kept, 2) == [[Move(0, 3), Move(4, 0)]]


@pytest.mark.parametrize(
    ("counts", "sizes", "message"),
    [
        (
            [[1] * 8],
            (9, 2),
            r"9 physical experts \(8 and 1 spare\) .* among 2 shards; with 1 more spare ones",
        ),
        ([[1] * 8], (6, 2), "6 physical experts are too few for the model's 8"),
        ([[1] * 8], (8, 0), "0 shards"),
        ([[1] * 8], (9, 3, 2, 2), "3 shards must be a multiple of 2 nodes"),
        ([[1] * 8], (8, 2, 1, 3), "8 experts of 3 groups"),
        ([[1, -1]], (2, 2), "whole numbers from 0"),
        ([[1.5, 1]], (2, 2), "whole numbers from 0"),
        ([1, 1], (2, 2), "a row for each layer"),
    ],
)
def test_wrong_sizes(counts: list[object], sizes: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        balanced(np.array(counts), *sizes)


def test_placements_of_other_sizes() -> None:
    with pytest.raises(ValueError, match="different sizes"):
        moves(of([0, 1]), of([0, 1, 0, 1]), 2)
    with pytest.raises(ValueError, match="different sizes"):
        keep_slots(of([0, 1]), of([0, 1, 0, 1]), 2)
    with pytest.raises(ValueError, match=r"counts of shape \(1, 3\)"):
        utilisation(shard_loads(np.array([[1, 2, 3]]), of([0, 1]), 2))


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, int, int, int, int]:
    """Counts, P, E, nodes, groups."""
    nodes, of_node = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shards = nodes * of_node
    groups = nodes * draw(st.integers(1, 3))
    experts = groups * draw(st.integers(1, 4))
    spare = -experts % shards + shards * draw(st.integers(0, 4))
    counts = st.lists(st.one_of(st.integers(0, 9), st.integers(0, 10**9)), min_size=experts, max_size=experts)
    return np.array(draw(st.lists(counts, min_size=1, max_size=3))), experts + spare, shards, nodes, groups


@given(cases())
def test_what_is_true_of_every_plan(case: tuple[np.ndarray, int, int, int, int]) -> None:
    counts, physical, shards, nodes, groups = case
    experts = counts.shape[1]
    plan = balanced(counts, physical, shards, nodes, groups)
    assert plan == balanced(counts.copy(), physical, shards, nodes, groups)
    assert plan.physical.shape == (len(counts), physical)  # so each shard has P / E
    assert (plan.replicas >= 1).all()
    assert (plan.replicas.sum(axis=1) == physical).all()
    np.testing.assert_allclose(shard_loads(counts, plan, shards).sum(axis=1), counts.sum(axis=1))
    for row in plan.physical:
        in_node = [{e * groups // experts for e in part} for part in row.reshape(nodes, -1).tolist()]
        assert sum(map(len, in_node)) == groups  # no group is in two nodes
        if physical // shards <= experts // nodes:
            assert all(len(set(shard)) == len(shard) for shard in row.reshape(shards, -1).tolist())
    if nodes == 1 or physical == experts:
        trivial = Placement.trivial(len(counts), experts, physical - experts)
        most = shard_loads(counts, plan, shards).max(axis=1)
        assert (most <= shard_loads(counts, trivial, shards).max(axis=1)).all()


@given(cases(), st.randoms(use_true_random=False))
def test_moves_lead_from_one_to_the_other(case: tuple[np.ndarray, int, int, int, int], random) -> None:
    counts, physical, shards, nodes, groups = case
    experts = counts.shape[1]
    old = Placement.trivial(len(counts), experts, physical - experts)
    new = balanced(counts, physical, shards, nodes, groups)
    for goal in (new, keep_slots(old, new, shards)):
        assert shards_of(goal, shards) == shards_of(new, shards)
        held = old.physical.copy()
        for layer, of_layer in enumerate(moves(old, goal, shards)):
            random.shuffle(of_layer)
            for slot, source in of_layer:
                held[layer, slot] = old.physical[layer, source]
        assert (held == goal.physical).all()
    kept = keep_slots(old, new, shards)
    assert sum(map(len, moves(old, kept, shards))) <= sum(map(len, moves(old, new, shards)))
