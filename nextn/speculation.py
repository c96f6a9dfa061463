"""What an engine does about drafts: resolved once, from its configuration and then its model. And which
combinations are refused, whether the configuration asks for them or a request does. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from nextn.draft import Shape
from nextn.request import CHAINS_ONLY, SpeculativeParams


@dataclass(frozen=True, slots=True)
class Speculation:
    """algorithm: NEXTN, NGRAM, NEXTN+NGRAM or NONE. num_steps: depth of a draft, with `auto` the most that is
    chosen while the engine runs; 0: nothing drafts. defaults: what a request gets that asks for nothing.
    simulated: the accept length by lot, if that is how drafts are accepted."""

    algorithm: str
    num_steps: int
    auto: bool = False
    shape: Shape = Shape()  # noqa: RUF009
    defaults: SpeculativeParams = SpeculativeParams()  # noqa: RUF009
    simulated: float | None = None

    @property
    def mtp(self) -> bool:
        """Does an MTP layer draft?"""
        return self.num_steps > 0 and self.algorithm != "NGRAM"

    @property
    def ngrams(self) -> bool:
        """May n-grams draft?"""
        return self.algorithm in ("NGRAM", "NEXTN+NGRAM")

    @property
    def beyond(self) -> int:
        """Slots past a request's last position that drafts may take."""
        return self.shape.beyond if self.num_steps else 0

    def on(self, nextn_layers: int) -> Speculation:
        """The same on a model with so many MTP layers to draft with."""
        if not self.mtp or nextn_layers:
            return self
        return dataclasses.replace(self, algorithm="NONE", num_steps=0, auto=False)

    def check(self, asked: SpeculativeParams, spell: Callable[[str], str]) -> None:
        """Raises ValueError where a rule forbids what is asked for. spell: a field's name in the message."""
        for rule in RULES:
            if rule.forbids(self, asked):
                value, why = getattr(asked, rule.field), rule.why(self, asked)
                raise ValueError(f"{spell(rule.field)} is {value!r}: {why}")


class Rule(NamedTuple):
    """field: of SpeculativeParams, that may not be as it is. why: what is wrong with it, and the fix."""

    field: str
    forbids: Callable[[Speculation, SpeculativeParams], bool]
    why: Callable[[Speculation, SpeculativeParams], str]


def _threshold(field: str) -> Rule:
    return Rule(
        field,
        lambda _, asked: getattr(asked, field) not in (None, 1.0) and asked.verify != "typical",
        lambda _, asked: f"verify {asked.verify!r} has no threshold; it needs typical",
    )


RULES = (
    Rule(
        "num_steps",
        lambda engine, asked: bool(asked.num_steps) and not engine.num_steps,
        lambda *_: (
            "there is no drafter, so it can only be 0; drafts need an MTP layer or "
            "--speculative-algorithm NGRAM, and --speculative-num-steps above 0"
        ),
    ),
    Rule(
        "verify",
        lambda engine, asked: asked.verify in CHAINS_ONLY and engine.ngrams,
        lambda engine, _: (
            f"it weighs the drafter's probabilities, and --speculative-algorithm "
            f"{engine.algorithm} drafts without any; choose exact or typical"
        ),
    ),
    Rule(
        "verify",
        lambda engine, asked: asked.verify in CHAINS_ONLY and engine.shape.topk > 1,
        lambda engine, _: (
            f"it verifies chains, not the trees of --speculative-eagle-topk "
            f"{engine.shape.topk}; choose exact or typical"
        ),
    ),
    Rule(
        "verify",
        lambda engine, asked: asked.verify not in (None, "exact") and engine.simulated is not None,
        lambda *_: "with --speculative-simulate-accept-length drafts are accepted by lot; leave it out",
    ),
    _threshold("accept_threshold_single"),
    _threshold("accept_threshold_acc"),
)
