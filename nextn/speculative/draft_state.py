"""What drafters keep of one request from step to step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from nextn.speculative.acceptance import Counts
from nextn.speculative.ngram import NGramIndex


@dataclass(slots=True)
class Waiting:
    """Positions that wait for the draft layer (nextn.speculative.behind): hidden states, and where they end.
    since: the first step that keeps the later ones, once the prompt is complete."""

    states: Tensor
    end: int
    since: int | None = None


@dataclass(slots=True)
class LayerProgress:
    """How far the layers of `nextn.speculative.layered` are. Entries before position `first` are the prefix
    cache's; positions count from `draft_from`. next[k], [1, C]: layer k - 1's state where layer k goes on."""

    first: int
    draft_from: int
    next: list[Tensor | None]


@dataclass(slots=True, eq=False)
class DraftState:
    """guesses: what each source guessed for position `guessed_at` and on, by number
    (nextn.speculative.acceptance).
    chances: the probabilities that each draft was drawn from, where its verification weighs them."""

    waiting: Waiting | None = None
    layers: LayerProgress | None = None
    ngrams: NGramIndex = field(default_factory=NGramIndex)
    guesses: dict[int, Sequence[int]] = field(default_factory=dict)
    guessed_at: int = 0
    acceptance: dict[int, Counts] = field(default_factory=dict)
    chances: list[Tensor] = field(default_factory=list)
