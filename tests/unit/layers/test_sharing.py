"""What ranks share out, and what they do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.checkpoints import tiny_config
from support.sharing import ExactReference
from support.thread_ranks import run_ranks
from torch import Tensor

from nextn.distributed.group import Alone
from nextn.families.config import ModelConfig
from nextn.layers.sharing import Sharing
from nextn.ops.base import Ops
from nextn.ops.reference import Reference

CPU = torch.device("cpu")
SIX = {"num_attention_heads": 6, "num_key_value_heads": 6}


def sharing(group: Any, ops: Ops, **changes: Any) -> Sharing:
    return Sharing(ModelConfig.from_dict(tiny_config(**changes)), ops, torch.float32, CPU, group)


def splits(group: Any, ops: Ops, **changes: Any) -> list[tuple[int, ...]]:
    found = sharing(group, ops, **changes)
    return [s.bounds for s in (found.heads(), found.hidden(), found.inner(40), found.vocabulary([3, 40]))]


def test_parts_of_two_ranks() -> None:
    want = [(0, 1, 2), (0, 16, 32), (0, 16, 40), (0, 16, 48)]
    assert run_ranks(2, lambda group: splits(group, ExactReference())) == [want, want]


def test_one_rank_has_everything() -> None:
    assert splits(Alone(), Reference()) == [(0, 2), (0, 32), (0, 40), (0, 48)]


def test_heads_come_out_even() -> None:
    with pytest.raises(
        ValueError,
        match="--tp-size 4: the model's 6 attention heads cannot be shared evenly among 4 ranks; "
        "--tp-size can be 1, 2, 3, 6",
    ):
        run_ranks(4, lambda group: sharing(group, Reference(), **SIX).heads())


class Narrow(ExactReference):
    """Outputs depend on how many there are, as with a BLAS that has other loops for narrow results."""

    exact_columns = False

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def _linear(self, x: Tensor, weight: Tensor) -> Tensor:
        return super()._linear(x, weight) + (self.rank == 1) * len(weight)


def test_what_would_have_other_bits_on_one_rank_is_split_on_none() -> None:
    """All ranks agree, whatever each of them measured."""
    want = [(0, 2), (0, 32), (0, 40), (0, 48)]
    assert run_ranks(2, lambda group: splits(group, Narrow(group.rank))) == [want, want]
    assert run_ranks(2, lambda group: splits(group, Narrow(0)))[0][1] == (0, 16, 32)
