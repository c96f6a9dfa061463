"""Ranks in processes, by Gloo: every rank has every column, and none waits long for one that is gone. (Bits:
test_torch_world.py. Texts: tests/unit/engine/test_gpu_ranks.py.)"""

from __future__ import annotations

import signal
import time

import pytest
import torch
from support.torch_ranks import finish, free_address, start_rank

from nextn.distributed.torch_group import TorchGroup


def test_every_rank_has_every_column_until_one_is_gone() -> None:
    """One of three is stopped. (One that is killed: test_torch_world.py.)"""
    address = free_address()
    ranks = [start_rank(rank, 3, address, "wait", timeout=5) for rank in range(3)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "ready\n", rank.communicate()
        ranks[2].send_signal(signal.SIGSTOP)
        begin = time.monotonic()
        for number, said in enumerate(finish(ranks[:2])):
            assert f"rank {number} of 3: another rank has ended, or does not answer (within 5 s): " in said
            assert float(said.split()[0]) < 30
        assert time.monotonic() - begin < 30
    finally:
        ranks[2].kill()
        ranks[2].communicate()


def test_a_rank_that_never_comes() -> None:
    (said,) = finish([start_rank(0, 2, free_address(), "wait", timeout=1)])
    assert "rank 0 of 2: not all ranks met at tcp://127.0.0.1:" in said


def test_backends() -> None:
    with pytest.raises(ValueError, match="no backend 'mpi' for ranks; there are: gloo, nccl"):
        TorchGroup(0, 1, free_address(), "mpi")
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="backend nccl: torch finds no CUDA device"):
            TorchGroup(0, 1, free_address(), "nccl")
