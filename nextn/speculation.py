"""The speculation settings of an engine, resolved from its configuration and its model, and the rules about
invalid combinations. The rules apply to the configuration and to requests. Without I/O.
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
    """algorithm: NEXTN, NGRAM, NEXTN+NGRAM or NONE. num_steps: draft depth; with `auto` the maximum depth
    chosen at run time; 0: no drafts. defaults: for options that a request leaves out. simulated: if set,
    drafts are accepted at random with this accept length."""

    algorithm: str
    num_steps: int
    auto: bool = False
    shape: Shape = Shape()  # noqa: RUF009
    defaults: SpeculativeParams = SpeculativeParams()  # noqa: RUF009
    simulated: float | None = None

    @property
    def mtp(self) -> bool:
        """Whether an MTP layer drafts."""
        return self.num_steps > 0 and self.algorithm != "NGRAM"

    @property
    def ngrams(self) -> bool:
        """Whether n-grams may draft."""
        return self.algorithm in ("NGRAM", "NEXTN+NGRAM")

    @property
    def beyond(self) -> int:
        """Slots after a request's last position that drafts may use."""
        return self.shape.beyond if self.num_steps else 0

    def on(self, nextn_layers: int) -> Speculation:
        """The same settings for a model with this number of MTP layers."""
        if not self.mtp or nextn_layers:
            return self
        return dataclasses.replace(self, algorithm="NONE", num_steps=0, auto=False)

    def check(self, asked: SpeculativeParams, spell: Callable[[str], str]) -> None:
        """Raises ValueError if a rule forbids what is asked for. spell: turns a field's name into its name in
        the message."""
        for rule in RULES:
            if rule.forbids(self, asked):
                value, why = getattr(asked, rule.field), rule.why(self, asked)
                raise ValueError(f"{spell(rule.field)} is {value!r}: {why}")


class Rule(NamedTuple):
    """field: the field of SpeculativeParams that is invalid. why: the reason, and the fix."""

    field: str
    forbids: Callable[[Speculation, SpeculativeParams], bool]
    why: Callable[[Speculation, SpeculativeParams], str]


def _threshold(field: str) -> Rule:
    return Rule(
        field,
        lambda _, asked: getattr(asked, field) not in (None, 1.0) and asked.verify != "typical",
        lambda _, asked: f"it applies to verify 'typical' only, and verify is {asked.verify!r}",
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
            f"it needs the drafter's probabilities, and --speculative-algorithm "
            f"{engine.algorithm} has none; choose exact or typical"
        ),
    ),
    Rule(
        "verify",
        lambda engine, asked: asked.verify in CHAINS_ONLY and engine.shape.topk > 1,
        lambda engine, _: (
            f"it verifies chains only, not the trees of --speculative-eagle-topk "
            f"{engine.shape.topk}; choose exact or typical"
        ),
    ),
    Rule(
        "verify",
        lambda engine, asked: asked.verify not in (None, "exact") and engine.simulated is not None,
        lambda *_: "with --speculative-simulate-accept-length, acceptance is simulated; leave it out",
    ),
    _threshold("accept_threshold_single"),
    _threshold("accept_threshold_acc"),
)
