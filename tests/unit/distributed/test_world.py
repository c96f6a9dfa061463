"""Worlds: where a rank is, and exchanges among threads. Processes: test_torch_world.py."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.exchanges import check_exchanges, rows_of_groups
from support.thread_world import ThreadWorld, run_world

from nextn.distributed.group import PeerGone
from nextn.distributed.world import Places, parts_of


def test_places_of_the_example() -> None:
    rank = Places(3, 4, groups=2, shards=2)
    assert (rank.group, rank.shard, rank.slices) == (1, 1, 2)
    assert parts_of(4, 2) == [range(0, 2), range(2, 4)]


@pytest.mark.parametrize(
    ("groups", "shards", "what"), [(3, 1, "3 attention groups"), (2, 8, "8 expert shards")]
)
def test_sizes_that_do_not_divide(groups: int, shards: int, what: str) -> None:
    with pytest.raises(ValueError, match=f"4 ranks cannot be divided evenly into {what}"):
        Places(0, 4, groups, shards)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(data=st.data())
def test_exchanges(data: st.DataObject) -> None:
    size = data.draw(st.sampled_from([1, 2, 3, 4, 6]))
    fitting = [n for n in range(1, size + 1) if size % n == 0]
    groups, shards = data.draw(st.sampled_from(fitting)), data.draw(st.sampled_from(fitting))
    seed = data.draw(st.integers(0, 99))
    run_world(size, groups, shards, lambda world: check_exchanges(world, seed))


def test_groups_and_shards() -> None:
    def members(world: ThreadWorld) -> tuple[list[int], list[int]]:
        found = []
        for group in (world.attention, world.peers):
            whole = torch.full((1, group.size), world.rank)
            group.gather(whole, range(group.size + 1))
            found.append(whole[0].tolist())
        return found[0], found[1]

    assert run_world(4, 2, 4, members) == [([0, 1], [0]), ([0, 1], [1]), ([2, 3], [2]), ([2, 3], [3])]
    assert run_world(4, 4, 1, members) == [([rank], [0, 1, 2, 3]) for rank in range(4)]


def test_ranks_of_a_group_have_the_same_rows() -> None:
    with pytest.raises(AssertionError, match="ranks of a group differ"):
        run_world(4, 2, 2, lambda world: rows_of_groups(world, world.rank))


def test_a_rank_that_raises_ends_the_others() -> None:
    """Wherever they wait for it."""
    seen = []

    def compute(world: ThreadWorld) -> None:
        if world.rank == 3:
            raise KeyError("rank 3's own")
        try:
            if world.rank == 2:
                world.peers.gather(torch.zeros(1, 2), (0, 1, 2))
            else:
                world.exchange([torch.zeros(1)] * 4, [1] * 4)
        except PeerGone as e:
            seen.append(str(e))
            raise

    with pytest.raises(KeyError, match="rank 3's own"):
        run_world(4, 2, 2, compute)
    assert seen == ["rank 3 has ended"] * 3


def test_a_rank_that_never_comes() -> None:
    def compute(world: ThreadWorld) -> None:
        if world.rank == 0:
            rows_of_groups(world, 1)

    with pytest.raises(PeerGone, match=r"ranks \[1\] did not come within 0.1 s"):
        run_world(2, 2, 2, compute, timeout=0.1)
