"""How far a chain of guesses is worth going on, guess by guess, from how sure the drafter is. Pure.

How sure it is shows in its choice: by how much the chosen token was ahead of the next best, noise included,
since the target chooses with the same noise. That lead, in logits, says far more than the depth does: with
nextn-tiny a guess that leads by less than 0.25 holds in 43 of 100 cases, one that leads by more than 2 in 99,
at any depth. How often guesses of each bin of leads hold is counted as they are verified
(`nextn.speculative.leads`).

So a chain has at every point a probability that all of it holds, and a step gains by

    verifying a guess   if that is more than a row of the target's step costs (`keep`),
    guessing once more  if that, times how often guesses hold, is more than a guess and its row cost (`each`),
                        and if over all chains what is gained is more than the pass costs (`passing`),

costs being seconds times the tokens per second that the engine makes. EAGLE-2 (arXiv 2406.16858) found the
drafter's confidence to tell acceptance; to weigh it against what steps cost over the whole batch is as in
SmartSpec (arXiv 2406.14066). The choice is of speed alone: whatever is drafted, texts are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

EDGES = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)  # logits


class Gate(NamedTuple):
    """Of a step. rates: by bin. keep, each, passing: tokens; usual: a probability. ungated: how deep the chains
    go whose guesses are not chosen by a draw alone, and so have no confidence."""

    rates: Sequence[float]
    keep: float
    usual: float
    each: float
    passing: float
    ungated: int = 2
