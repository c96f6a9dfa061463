"""Automatic depth without a clock: it finds that a step takes what was predicted, and drafts now more, now
less than that. So which drafts are made depends on texts and on the schedule alone."""

from __future__ import annotations

import pytest
from support.played_groups import not_measured

from nextn.engine import build
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.work import StepWork

SLOW = 20.0  # a test has few steps, and seconds pass between two plans
EVERY, DEAR = 40, 4.0  # steps after which drafts become so much dearer, or cheap again


class PlayedDepth(DepthController):
    played = 0

    def stepped(
        self, work: StepWork, seconds: float | None, own: bool = True, drafting: bool | None = None
    ) -> None:
        if work.requests:
            self.played += 1
        factor = DEAR if self.played // EVERY % 2 else 1.0
        took = SLOW * (self.cost.base(work) + factor * self.cost.extra(work))
        super().stepped(work, took, own, drafting)


def play_depth(patch: pytest.MonkeyPatch) -> None:
    """In engines that are made from now on."""
    patch.setattr(build, "time_steps", not_measured)
    patch.setattr(build, "DepthController", PlayedDepth)
