"""Reorders a head's elements in grouped-query attention, from a checkpoint's order to the kernels' order.

In checkpoints, the first `rotary_dim` elements of a query's or key's head are rotated: element i together
with element i + rotary_dim / 2. All kernels rotate neighbours, at the end of a head, as in MLA. So the rows
of q_proj and k_proj, their biases, and the weights of the norms are reordered when they are placed. A score
does not change: queries and keys have the same order. No other file depends on the two orders.

>>> head_order(head_dim=6, rotary_dim=4)
[4, 5, 0, 2, 1, 3]
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.families.config import ModelConfig


def head_order(head_dim: int, rotary_dim: int) -> list[int]:
    """For each element of a head in the kernels' order, its index in the checkpoint's order."""
    half = rotary_dim // 2
    pairs = [i for first in range(half) for i in (first, first + half)]
    return [*range(rotary_dim, head_dim), *pairs]


def row_order(cfg: ModelConfig, name: str, rows: int) -> Sequence[int] | None:
    """For each row of a tensor in the kernels' order, its index in the checkpoint's order; None if the order
    is the same. name: the tensor's name in a checkpoint. rows: number of rows of the tensor, or of a rank's
    part of it; whole heads."""
    names, gqa = cfg.names, cfg.gqa
    if gqa is None or not name.endswith(
        (names.q_proj, names.k_proj, names.q_bias, names.k_bias, names.q_norm, names.k_norm)
    ):
        return None
    order = head_order(gqa.head_dim, gqa.rotary_dim)
    return [first + i for first in range(0, rows, gqa.head_dim) for i in order]


def as_computed(cfg: ModelConfig, name: str, tensor: Tensor) -> Tensor:
    """A checkpoint's tensor, or a rank's rows of it, with its rows in the kernels' order."""
    order = row_order(cfg, name, len(tensor))
    return tensor if order is None else tensor[torch.tensor(order, device=tensor.device)]
