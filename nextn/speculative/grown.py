"""One request's draft while it is made: its guesses, their cache slots, and their rows in the last pass."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.cutoff import CutChains
from nextn.draft import Draft, Shape
from nextn.layers.batch import Span
from nextn.ops.base import DrawParams
from nextn.speculative.base import DraftSpan
from nextn.speculative.guesses import Guesses, Place, first_draw
from nextn.speculative.tree import Growing


class Grown:
    """index: of the span in the step. draw: for the first guess; None if guesses need more than a draw.
    cut: whether the cutoff may end it. rows: rows of the last pass, one for each node of the frontier; before
    the first guess, the row of the last committed position."""

    def __init__(self, index: int, span: DraftSpan, topk: int, row: int) -> None:
        self.index, self.span, self.rows = index, span, [row]
        self.tree = Growing(topk)
        self.draw: DrawParams | None = first_draw(span) if topk == 1 else None
        self.cut = self.draw is not None and span.cutoff is not None
        self.num_steps = span.num_steps
        if span.cutoff is not None and not self.cut:
            self.num_steps = min(span.num_steps, span.cutoff.num_steps)
        self.bins = bytearray()  # confidence bins of its guesses, if `cut`
        self.end = span.start + len(span.following)  # the first free slot
        self.slots: dict[int, list[int]] = {-1: []}  # node -> slots of its path, counted from `end`
        self.where: dict[int, int] = {}  # node -> its row of the last pass

    @property
    def places(self) -> list[Place]:
        return [Place(self.index, self.span, self.tree.path(node)) for node in self.tree.frontier]

    def grow(self, children: Sequence[Guesses]) -> None:
        """Adds guesses. Afterwards `rows` are the rows of the new frontier's parents."""
        before = dict(zip(self.tree.frontier, self.rows, strict=True))
        self.tree.grow(children)
        self.rows = [before[self.tree.parents[node]] for node in self.tree.frontier]

    def place(self) -> None:
        """Assigns slots to the frontier of a tree, so that the drafter can run over it."""
        used = len(self.slots) - 1
        for at, node in enumerate(self.tree.frontier):
            self.slots[node] = [*self.slots[self.tree.parents[node]], used + at]

    def deeper(self) -> Span:
        """The frontier as a span, for the next pass of the drafter."""
        tree, pages = self.tree, self.span.pages
        if tree.topk == 1:
            return Span(tree.tokens[-1:], self.end + len(tree.tokens) - 1, pages)
        self.place()
        tokens = [tree.tokens[node] for node in tree.frontier]
        return Span(tokens, self.end, pages, [self.slots[node] for node in tree.frontier])

    def draft(self, shape: Shape, kept: int | None = None) -> Draft:
        """The finished draft. kept: number of guesses of a chain that are worth verifying; None: all."""
        if shape.topk > 1:
            return self.tree.best(shape.size(self.num_steps))
        tokens = self.tree.tokens
        return Draft(tokens[:kept], bins=bytes(self.bins[: len(tokens)]) if self.cut else b"")


class Cutting:
    """The chains of a step that its cutoff may end, and their progress."""

    def __init__(self, chains: Sequence[Grown]) -> None:
        self.chains = chains
        cutoff = chains[0].span.cutoff if chains else None
        self._rule = None if cutoff is None else CutChains(cutoff, [g.num_steps for g in chains])

    def guessed(self, depth: int, others: bool) -> None:
        """All chains in `going` now have `depth` guesses. others: see `CutChains.guessed`."""
        if self._rule is not None:
            self._rule.guessed(bytes(self.chains[n].bins[depth - 1] for n in self._rule.going), others)

    @property
    def going(self) -> list[Grown]:
        return [] if self._rule is None else [self.chains[n] for n in self._rule.going]

    @property
    def kept(self) -> dict[int, int]:
        """Index of the span -> number of guesses that are worth verifying."""
        if self._rule is None:
            return {}
        return {g.index: kept for g, kept in zip(self.chains, self._rule.kept, strict=True)}
