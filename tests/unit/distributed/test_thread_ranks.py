"""Ranks in threads: every rank has every column, and none waits for one that has ended."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thread_ranks import ThreadGroup, run_ranks
from torch import Tensor

from nextn.distributed.group import PeerGone

DTYPES = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8, torch.int64)


@settings(max_examples=50, derandomize=True)
@given(data=st.data())
def test_every_rank_has_every_column(data: st.DataObject) -> None:
    """Parts of any width, also none; any dtype; also no rows. Bits arrive, NaNs among them."""
    size = data.draw(st.integers(1, 4))
    widths = data.draw(st.lists(st.integers(0, 5), min_size=size, max_size=size))
    bounds = [sum(widths[:r]) for r in range(size + 1)]
    dtype, rows = data.draw(st.sampled_from(DTYPES)), data.draw(st.integers(0, 3))
    gen = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    raw = torch.randint(0, 256, (rows * bounds[-1] * dtype.itemsize,), generator=gen, dtype=torch.uint8)
    want = raw.view(dtype).view(rows, bounds[-1])

    def compute(group: ThreadGroup) -> list[Tensor]:
        found = []
        for _ in range(2):
            whole = torch.zeros_like(want)
            own = slice(bounds[group.rank], bounds[group.rank + 1])
            whole[:, own] = want[:, own]
            group.gather(whole, bounds)
            found.append(whole)
        return found

    for ranks in run_ranks(size, compute):
        assert all(torch.equal(whole.flatten().view(torch.uint8), raw) for whole in ranks)


def test_a_rank_that_raises_ends_the_others() -> None:
    seen = []

    def compute(group: ThreadGroup) -> None:
        if group.rank == 1:
            raise KeyError("rank 1's own")
        try:
            group.gather(torch.zeros(1, 3), (0, 1, 2, 3))
        except PeerGone as e:
            seen.append(str(e))
            raise

    with pytest.raises(KeyError, match="rank 1's own"):
        run_ranks(3, compute)
    assert seen == ["rank 1 has ended"] * 2


def test_a_rank_that_never_comes() -> None:
    def compute(group: ThreadGroup) -> None:
        if group.rank == 0:
            group.gather(torch.zeros(1, 2), (0, 1, 2))

    with pytest.raises(PeerGone, match=r"ranks \[1\] did not come within 0.1 s"):
        run_ranks(2, compute, timeout=0.1)


def test_ranks_that_ask_for_different_things() -> None:
    with pytest.raises(AssertionError):
        run_ranks(2, lambda group: group.gather(torch.zeros(1 + group.rank, 2), (0, 1, 2)))
