"""A world of processes, by Gloo: exchanges, ranks that are gone, and groups' steps to the bit."""

from __future__ import annotations

import signal
import time

import pytest
from support.torch_ranks import finish, free_address, start_rank


@pytest.mark.parametrize(("size", "groups", "shards"), [(2, 1, 2), (3, 3, 1), (4, 2, 2)])
def test_exchanges(size: int, groups: int, shards: int) -> None:
    address = free_address()
    ranks = [start_rank(rank, size, address, "exchange", str(groups), str(shards)) for rank in range(size)]
    assert finish(ranks) == ["exchanged"] * size


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone(ending: signal.Signals) -> None:
    """Killed, or no longer running."""
    address = free_address()
    ranks = [start_rank(rank, 2, address, "await", "2", "2", timeout=5) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        ranks[1].send_signal(ending)
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
    ranks = [start_rank(rank, 2, address, "world", "2", str(shards), *options) for rank in range(2)]
    ranks += [start_rank(0, 1, free_address(), "one", group, *options) for group in "01"]
    found = finish(ranks)
    assert found[:2] == found[2:]
    assert found[0] != found[1]
