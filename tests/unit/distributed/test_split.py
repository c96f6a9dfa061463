from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.thread_ranks import ThreadGroup, run_ranks
from torch import Tensor

from nextn.distributed.group import Alone
from nextn.distributed.split import Split


@given(st.integers(1, 3000), st.integers(1, 8))
def test_no_rank_is_left_without_columns_where_there_are_enough(n: int, size: int) -> None:
    split = Split.even(Sized(size), n)
    assert [i for part in split.parts for i in part] == list(range(n))
    assert n < size or all(split.parts)
    if n >= 64 * size:
        assert all(b % 64 == 0 for b in split.bounds[:-1])


class Sized(Alone):
    def __init__(self, size: int) -> None:
        self.size = size  # type: ignore[misc]


def test_columns_that_stand_for_several() -> None:
    split = Split(Sized(2), (0, 2, 3)).times(4)
    assert (split.n, split.own, split.parts) == (12, range(8), [range(8), range(8, 12)])


def test_one_rank_gets_its_own_back() -> None:
    part = torch.zeros(2, 5)
    assert Split.even(Alone(), 5).whole(part) is part
    assert Split.not_split(5).wholes(part, part) == (part, part)


def test_several_go_together() -> None:
    want = torch.arange(60.0).view(2, 3, 10)

    def compute(group: ThreadGroup) -> list[tuple[Tensor, ...]]:
        split = Split(group, (0, 4, 4, 10))
        own = want[:, :, split.begin : split.end]
        return [split.wholes(*own), (split.whole(own[0]),), split.wholes(*own[:, :0])]

    for both, one, none in run_ranks(3, compute):
        assert torch.equal(torch.stack(both), want)
        assert torch.equal(one[0], want[0])
        assert [t.shape for t in none] == [(0, 10)] * 2
