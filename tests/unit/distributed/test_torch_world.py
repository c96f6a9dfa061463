"""A world of processes, by Gloo: exchanges, ranks that are gone, and groups' steps to the bit."""

from __future__ import annotations

import time

import pytest
import torch
from support.torch_ranks import finish, free_address, start_rank
from support.torch_worlds import group_hash


def test_exchanges() -> None:
    """Two groups of two ranks. Worlds of other sizes, of threads: test_world.py."""
    address = free_address()
    ranks = [start_rank(rank, 4, address, "exchange", "2", "2") for rank in range(4)]
    assert finish(ranks) == ["exchanged"] * 4


def test_a_rank_that_is_gone() -> None:
    """Killed. One that is stopped: test_torch_group.py."""
    address = free_address()
    ranks = [start_rank(rank, 2, address, "await", "2", "2", timeout=5) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        ranks[1].kill()
        begin = time.monotonic()
        (said,) = finish(ranks[:1])
        assert "rank 0 of 2: another rank has ended, or does not answer (within 5 s): " in said
        assert time.monotonic() - begin < 30
    finally:
        ranks[1].kill()
        ranks[1].communicate()


@pytest.mark.parametrize(("shards", "dtype"), [(2, "float32"), (1, "bfloat16")])
def test_two_groups_have_the_bits_of_one_device(shards: int, dtype: str) -> None:
    """With two shards, and with one of two slices."""
    options, address = ("cpu", "reference", dtype), free_address()
    threads = torch.get_num_threads()
    ranks = [start_rank(rank, 2, address, "world", "2", str(shards), *options) for rank in range(2)]
    torch.set_num_threads(1)
    try:
        wanted = [group_hash(group, None, *options) for group in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert finish(ranks) == wanted
    assert wanted[0] != wanted[1]
