"""Better placements, and which replica gets the rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.distributed.improvement import dispatched, improved
from nextn.distributed.placement import Placement, utilisation


def of(*rows: list[int]) -> Placement:
    return Placement(np.array(rows), max(map(max, rows)) + 1)


@pytest.mark.parametrize(
    ("dynamic", "loads"), [(True, [5 + 8, 5 + 4]), (False, [6 + 8, 4 + 4])], ids=["dynamic", "static"]
)
def test_rows_of_replicas(dynamic: bool, loads: list[int]) -> None:
    """Expert 0 has a replica on each shard: group 0 uses the first, group 1 the other."""
    counts = np.array([[[6, 3, 1]], [[4, 5, 3]]])
    assert dispatched(counts, of([0, 1, 2, 0]), 2, dynamic).tolist() == [loads]


def test_one_group_uses_one_replica() -> None:
    counts = np.array([[[6, 3, 1]]])
    assert dispatched(counts, of([0, 1, 2, 0]), 2, False).tolist() == [[9, 1]]


def test_layers_that_gain_little_stay() -> None:
    counts = np.array([[[50, 49, 51, 50], [90, 80, 10, 20], [0, 0, 0, 0]]])
    present = of([0, 1, 2, 3], [0, 1, 2, 3], [3, 2, 1, 0])
    found = improved(present, counts, 2, True)
    assert found.physical[[0, 2]].tolist() == present.physical[[0, 2]].tolist()
    assert utilisation(dispatched(counts, found, 2, True)).tolist() == [99 / 101 + 1 / 101, 1.0, 1.0]


@given(st.integers(0, 99), st.sampled_from([1, 2, 4]), st.sampled_from([0, 4]), st.booleans())
def test_never_worse(seed: int, shards: int, spare: int, dynamic: bool) -> None:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 99, (2, 3, 8))
    present = Placement(
        np.array([rng.permutation([*range(8), *rng.integers(0, 8, spare)]) for _ in range(3)]), 8
    )
    found = improved(present, counts, shards, dynamic)
    before, after = (dispatched(counts, p, shards, dynamic) for p in (present, found))
    assert (after.max(axis=1) <= before.max(axis=1)).all()
    assert after.sum(axis=1) == pytest.approx(before.sum(axis=1))
