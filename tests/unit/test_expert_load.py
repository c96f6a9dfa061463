"""The shards' loads of several engines, as one number."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from nextn.expert_load import ShardRows, imbalance


@st.composite
def tables(draw: st.DrawFn) -> list[NDArray[Any]]:
    """[layers, shards] of each engine."""
    layers, shards = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    rows = st.lists(st.integers(0, 99), min_size=layers * shards, max_size=layers * shards)
    engines = draw(st.lists(rows, min_size=1, max_size=3))
    return [np.array(each, np.float64).reshape(layers, shards) for each in engines]


@given(tables())
def test_highest_over_mean(engines: list[NDArray[Any]]) -> None:
    found = imbalance([ShardRows(each.shape[1], each.tobytes()) for each in engines])
    whole = np.sum(engines, axis=0)
    expected = whole.max(axis=1).sum() / whole.mean(axis=1).sum() if whole.any() else 1.0
    np.testing.assert_allclose(found, expected)
    assert found >= 1.0 - 1e-9
