"""Ranks in processes, by Gloo: every rank has every column, and none waits long for one that is gone."""

from __future__ import annotations

import signal
import time

import pytest
import torch
from support.torch_ranks import finish, free_address, start_rank, steps_hash

from nextn.distributed.group import Alone
from nextn.distributed.torch_group import TorchGroup


def test_every_rank_has_every_column() -> None:
    address = free_address()
    ranks = [start_rank(rank, 3, address, "gather") for rank in range(3)]
    assert finish(ranks) == ["gathered"] * 3


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone(ending: signal.Signals) -> None:
    """Killed, or no longer running."""
    address = free_address()
    ranks = [start_rank(rank, 2, address, "wait", timeout=5) for rank in range(2)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        ranks[1].send_signal(ending)
        begin = time.monotonic()
        (said,) = finish(ranks[:1])
        seconds = float(said.split()[0])
        assert "rank 0 of 2: another rank has ended, or does not answer (within 5 s): " in said
        assert seconds < 30 > time.monotonic() - begin
    finally:
        ranks[1].kill()
        ranks[1].communicate()


def test_a_rank_that_never_comes() -> None:
    (said,) = finish([start_rank(0, 2, free_address(), "wait", timeout=1)])
    assert "rank 0 of 2: not all ranks met at tcp://127.0.0.1:" in said


def test_backends() -> None:
    with pytest.raises(ValueError, match="no backend 'mpi' for ranks; there are: gloo, nccl"):
        TorchGroup(0, 1, free_address(), "mpi")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="backend nccl: torch finds no CUDA device"):
            TorchGroup(0, 1, free_address(), "nccl")


def test_two_processes_have_the_bits_of_one() -> None:
    task = ("steps", "cpu", "reference", "float32")
    address = free_address()
    ranks = [start_rank(rank, 2, address, *task) for rank in range(2)]
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        want = steps_hash(Alone(), *task[1:])
    finally:
        torch.set_num_threads(threads)
    assert finish(ranks) == [want, want]
