"""Chooses the tokens after rows of hidden states, on the device.

draws: called only if the choice needs more than the logits.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from nextn.models.torch_model import TorchModel
from nextn.sampling.row_draws import Choosing, RowDraws, draw_rows


def chosen(model: TorchModel, hidden: Tensor, draws: Callable[[], RowDraws], choosing: Choosing) -> Tensor:
    """The target's choices, [N] int64; NO_TOKEN if no token can be chosen. hidden: [N, C]."""
    if choosing == Choosing.GREEDY and model.group.size == 1:
        return model.ops.best_of_product(hidden, model.head)[0]
    return draw_rows(model.logits(hidden), draws(), choosing, model.ops.uniforms)[0]


def guessed(
    model: TorchModel, state: Tensor, count: int, draws: Callable[[], RowDraws], choosing: Choosing,
    confident: bool,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """The drafter's guesses for the first `count` rows, and their confidence if `confident`. state:
    [count or more, C]."""
    if choosing == Choosing.GREEDY and model.group.size == 1 and model.draft_rows is None:
        tokens, confidence = model.ops.best_of_product(state, model.head)
        return tokens[:count], confidence[:count] if confident else None
    logits = model.draft_logits(state)[:count]
    best = model.ops.best_token if confident else None
    return draw_rows(logits, draws(), choosing, model.ops.uniforms, best)
