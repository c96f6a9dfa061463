"""A world of processes, by Gloo: exchanges, ranks that are gone, and groups' steps to the bit."""

from __future__ import annotations

import time

import torch
from support.torch_ranks import finish, free_address, start_rank
from support.torch_worlds import group_hash


def test_exchanges_until_a_rank_is_gone() -> None:
    """Two groups of two ranks. Then one is killed; one that is stopped: test_torch_group.py. (Worlds of other
    sizes, of threads: test_world.py.)"""
    address = free_address()
    ranks = [start_rank(rank, 4, address, "await", "2", "2", timeout=5) for rank in range(4)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        ranks[3].kill()
        begin = time.monotonic()
        for number, said in enumerate(finish(ranks[:3])):
            assert f"rank {number} of 4: another rank has ended, or does not answer (within 5 s): " in said
        assert time.monotonic() - begin < 30
    finally:
        ranks[3].kill()
        ranks[3].communicate()


def test_two_groups_have_the_bits_of_one_device() -> None:
    """With two shards, and with one of two slices."""
    options, address = ("cpu", "reference", "float32"), free_address()
    threads = torch.get_num_threads()
    ranks = [start_rank(rank, 2, address, "world", "2", "2,1", *options) for rank in range(2)]
    torch.set_num_threads(1)
    try:
        wanted = [group_hash(group, None, *options) for group in range(2)]
    finally:
        torch.set_num_threads(threads)
    assert finish(ranks) == [f"{each}\n{each}" for each in wanted]
    assert wanted[0] != wanted[1]
