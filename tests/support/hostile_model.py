"""The fake model, with some logits that no model should have. Which ones is a function of the context."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nextn.engine.engine import Engine
from nextn.models.fake import FakeModel

FINITE: dict[str, Callable[[Tensor], None]] = {  # a token can be chosen
    "equal": lambda row: row.zero_(),  # type: ignore[dict-item]
    "huge": lambda row: row.mul_(1e9),  # type: ignore[dict-item]
    "low": lambda row: row.fill_(-1e9),  # type: ignore[dict-item]
}
NOT_FINITE: dict[str, Callable[[Tensor], None]] = {  # no token can be chosen
    "nan": lambda row: row.fill_(torch.nan),  # type: ignore[dict-item]
    "one nan": lambda row: row[7:8].fill_(torch.nan),  # type: ignore[dict-item]
    "infinity": lambda row: row[9:10].fill_(torch.inf),  # type: ignore[dict-item]
    "nothing": lambda row: row.fill_(-torch.inf),  # type: ignore[dict-item]
}
# All kinds. With "extreme" and "two" a token can be chosen for some requests only.
KINDS = {
    **FINITE,
    **NOT_FINITE,
    "extreme": lambda row: row.sign_().mul_(3e38),
    "two": lambda row: row[2:].fill_(-torch.inf),
}


class HostileModel(FakeModel):
    """target, draft: kinds of logits. One in `spread` rows has logits of these kinds, in turn."""

    def __init__(
        self,
        target: Sequence[str] = (),
        draft: Sequence[str] = (),
        spread: int = 4,
        acceptance: Sequence[float] = (0.9, 0.7),
    ) -> None:
        super().__init__(tuple(acceptance), torch.device("cpu"))
        self.target, self.of_draft, self.spread = target, draft, spread

    def logits(self, hidden: Tensor) -> Tensor:
        return self._spoilt(hidden, self.target)

    def draft_logits(self, hidden: Tensor) -> Tensor:
        return self._spoilt(hidden, self.of_draft)

    def _spoilt(self, hidden: Tensor, kinds: Sequence[str]) -> Tensor:
        logits = FakeModel.logits(self, hidden)
        if kinds:
            for row, word in zip(logits, hidden[:, 1].long().tolist(), strict=True):
                if word % self.spread == 0:
                    KINDS[kinds[word // self.spread % len(kinds)]](row)
        return logits


def use(engine: Engine, model: FakeModel) -> Engine:
    """Replaces the fake model of an engine by this one. Returns the engine."""
    executor: Any = engine._executor
    executor.model = model
    for drafter in (executor.drafter, getattr(executor.drafter, "nextn", None)):
        if hasattr(drafter, "model"):
            drafter.model = model
    return engine
