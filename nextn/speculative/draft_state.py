"""The state of one request that drafters keep from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from nextn.speculative.acceptance import Counts
from nextn.speculative.ngram import NGramIndex


@dataclass(slots=True)
class Waiting:
    """Positions over which the draft layer still has to run (nextn.speculative.behind): their hidden states,
    and the position after them. since: number of the step from which on the ring keeps later positions."""

    states: Tensor
    end: int
    since: int | None = None


@dataclass(slots=True)
class LayerProgress:
    """The progress of the layers of `nextn.speculative.layered`. Entries before position `first` belong to
    the prefix cache; positions are counted from `draft_from`. next[k], [1, C]: the state of layer k - 1 at
    the position where layer k continues."""

    first: int
    draft_from: int
    next: list[Tensor | None]


@dataclass(slots=True, eq=False)
class DraftState:
    """guesses: the tokens that each source (nextn.speculative.acceptance) guessed for the positions from
    `guessed_at` on. chances: the probabilities from which each draft was drawn, if verification needs them.
    """

    waiting: Waiting | None = None
    layers: LayerProgress | None = None
    ngrams: NGramIndex = field(default_factory=NGramIndex)
    guesses: dict[int, Sequence[int]] = field(default_factory=dict)
    guessed_at: int = 0
    acceptance: dict[int, Counts] = field(default_factory=dict)
    chances: list[Tensor] = field(default_factory=list)
