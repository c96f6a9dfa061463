"""Which shard computes a row's expert."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.layers.replicas import Replicas

CPU = torch.device("cpu")


def test_the_example() -> None:
    found = Replicas(np.array([0, 1, 0, 2, 3, 0]), 4, 2, None, CPU)
    assert found.held == [[0, 1, 0], [2, 3, 0]]
    shard, place = found.choose(torch.tensor([[0, 1], [0, 2], [0, 3], [0, 1]]), 0)
    assert shard.tolist() == [[0, 0], [0, 1], [1, 1], [0, 0]]
    assert place.tolist() == [[2, 1], [2, 0], [2, 1], [2, 1]]
    assert found.choose(torch.tensor([[0]]), 5)[0].tolist() == [[1]]


def test_static_ones_depend_on_the_group() -> None:
    ids = torch.zeros(5, 1, dtype=torch.int64)
    for group, want in ((0, 0), (1, 1), (2, 0), (3, 1)):
        replicas = Replicas(np.array([0, 1, 1, 0]), 2, 2, group, CPU)
        assert replicas.choose(ids, 0)[0].tolist() == [[want]] * 5


@settings(max_examples=30, derandomize=True)
@given(data=st.data())
def test_a_row_goes_where_its_expert_is_held(data: st.DataObject) -> None:
    draw = data.draw
    shards, experts = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    slots = -(-(experts + draw(st.integers(0, 9))) // shards) * shards
    more = draw(st.lists(st.integers(0, experts - 1), min_size=slots, max_size=slots))
    physical = np.array(draw(st.permutations([*range(experts), *more[experts:]])))
    group = draw(st.none() | st.integers(0, 3))
    replicas = Replicas(physical, experts, shards, group, CPU)
    rows, k = draw(st.integers(0, 7)), draw(st.integers(1, 3))
    ids = torch.tensor(draw(st.lists(st.integers(0, experts - 1), min_size=rows * k, max_size=rows * k)))
    ids = ids.long().view(rows, k)
    shard, place = replicas.choose(ids, draw(st.integers(0, 9)))
    assert replicas.held == physical.reshape(shards, -1).tolist()
    for e, s, i in zip(*(t.flatten().tolist() for t in (ids, shard, place)), strict=True):
        assert replicas.held[s][i] == e
