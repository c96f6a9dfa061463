"""The tokens of rows of hidden states, chosen on the device."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from nextn.models.torch_model import TorchModel
from nextn.ops.base import NO_TOKEN
from nextn.sampling.row_draws import Choosing, RowDraws, draw_rows


def chosen(model: TorchModel, hidden: Tensor, draws: RowDraws, choosing: Choosing) -> Tensor:
    """The target's, [N] int64, NO_TOKEN where there is no choice. hidden: [N, C]."""
    if choosing == Choosing.GREEDY and model.group.size == 1:
        return _best(model, hidden)[0]
    return draw_rows(model.logits(hidden), draws, choosing)[0]


def guessed(
    model: TorchModel, state: Tensor, draws: RowDraws, choosing: Choosing, confident: bool
) -> tuple[Tensor, Tensor | None]:
    """The drafter's, of as many rows as there are `draws`, and their confidence, if it is wanted. state: [N
    or more, C]."""
    count = len(draws.position)
    if choosing == Choosing.GREEDY and model.group.size == 1 and model.draft_rows is None:
        tokens, confidence = _best(model, state)
        return tokens[:count], confidence[:count]
    logits = model.draft_logits(state)[:count]
    return draw_rows(logits, draws, choosing, model.ops.best_token if confident else None)


def _best(model: TorchModel, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Logits are not written to memory."""
    tokens, confidence, logit = model.ops.best_of_product(hidden, model.head)
    return torch.where(logit.abs() < math.inf, tokens, NO_TOKEN), confidence
