"""The MTP drafter: keeps the NextN layer's cache true, and grows the next draft on it.

After a step committed m tokens of a request, its NextN layer runs over those m positions with the
target's true hidden states (draft extend), which writes over whatever earlier guesses had left there.
The last of these rows predicts the first guesses; each further depth feeds back the layer's own output
and its own last guesses, one position on. Nothing here can change a text, only how many drafts hold.

While a draft grows, what is grown on gets slots behind the committed ones, `topk` of them a depth.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

from torch import Tensor

from nextn.draft import NO_DRAFT, Draft, Shape
from nextn.gate import GatedChains, bins
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Chains, Model, take
from nextn.ops.base import NO_TOKEN, Drawn
from nextn.speculative.behind import Behind
from nextn.speculative.committed import Committed
from nextn.speculative.tree import Growing


class ChooseDraft(Protocol):
    """How a step's requests guess, each in its own verify mode."""

    def __call__(
        self, logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]], k: int
    ) -> list[list[tuple[int, float]]]:
        """(index into the step's requests, guesses so far) per row of logits -> the k best (token,
        log-probability) of each row, best first. Fewer, or none, where no more may be guessed. The
        log-probability may be left at 0 when k is 1, and be -infinity or NaN: such a token is no guess."""

    def drawn(self, index: int, count: int) -> tuple[Drawn, bool]:
        """How to draw so many guesses of one of the step's requests; whether a draw is all that it takes."""

    def draw(self, logits: Tensor, draws: Sequence[Drawn]) -> tuple[list[int], list[float]]:
        """Guesses that take no more, and the confidence of each (`nextn.ops.base.Draw`)."""


class Drafted(NamedTuple):
    """One draft for each request, and what was run to make them."""

    drafts: list[Draft]
    extended: int = 0  # rows that the draft layer ran over
    passes: Sequence[int] = ()  # rows of each pass for depths beyond the first


class Drafter(Protocol):
    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        """hidden [T, C] of the target's step -> the draft of each request, at most `want` deep."""

    def forget(self, rids: Sequence[str]) -> None:
        """These requests have ended, or will come again from their beginning."""


class NoDrafter:
    """Speculation off: the same step, without drafts."""

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        return Drafted([NO_DRAFT for _ in work])

    def forget(self, rids: Sequence[str]) -> None:
        pass


class _Chain(NamedTuple):
    place: int  # among the step's requests
    span: int  # of the batch, that it goes on from
    draw: Drawn


class MTPDrafter:
    def __init__(self, model: Model, pool: KVPool, shape: Shape, chains: Chains | None = None) -> None:
        """chains: the model, if it can."""
        self.model, self.pool, self.shape, self.chains = model, pool, shape, chains
        self.behind = Behind(pool.page_size)

    @property
    def gates(self) -> bool:
        """Are drafts cut short by a gate?"""
        return self.shape.topk == 1

    def forget(self, rids: Sequence[str]) -> None:
        self.behind.drop(rids)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        now = [w for w in work if w.extend]
        if len(now) < len(work):
            self.behind.keep(hidden, work)
        if not now:
            return Drafted([NO_DRAFT] * len(work))
        extended = self._catch_up(work)
        draws: dict[int, tuple[Drawn, bool]] = {}
        if self.shape.topk == 1:
            draws = {
                i: _drawn(choose, i, w)
                for i, w in enumerate(work)
                if w.want and (self.chains is not None or w.gate is not None)
            }
            if self.chains is not None and not _waits(self.chains, work, draws):
                return self._in_one_call(self.chains, hidden, work, choose, draws, extended)
        state, rows, ran = self._extend(hidden, now)
        extended += ran
        ends = iter(rows)
        passes: list[int] = []
        growing: dict[int, Grown] = {}
        for i, w in enumerate(work):
            row = next(ends) if w.extend else -1
            if w.want:
                growing[i] = Grown(w, self.shape.topk, row)
        wants = {i: draws[i][0].rows if i in draws else g.work.want for i, g in growing.items()}
        gated = _Gated(growing, draws)
        depth = 0
        left = [(i, g) for i, g in growing.items() if i not in gated.places]
        while left or gated.going:
            both = [*gated.going, *(g for _, g in left)]
            logits = self.model.draft_logits(take(self.model, state, [row for g in both for row in g.rows]))
            if left:
                asked = [(i, g.tree.path(node)) for i, g in left for node in g.tree.frontier]
                guesses = iter(choose(logits[len(gated.going) :], asked, self.shape.topk))
                for _, g in left:
                    g.grow([next(guesses) for _ in g.tree.frontier])
            depth += 1
            left = [(i, g) for i, g in left if wants[i] > depth and g.tree.frontier]
            if gated.going:
                gated.guess(logits, choose, bool(left))
            both = [*gated.going, *(g for _, g in left)]
            if both:
                state, ran = self._deeper(state, both, depth)
                passes.append(ran)
        found = gated.drafts()
        for i, g in growing.items():
            if i not in found:
                found[i] = g.tree.best(self.shape.size(wants[i]))
        return Drafted([found.get(i, NO_DRAFT) for i in range(len(work))], extended, passes)

    def _in_one_call(
        self,
        chains: Chains,
        hidden: Tensor,
        work: Sequence[Committed],
        choose: ChooseDraft,
        draws: Mapping[int, tuple[Drawn, bool]],
        caught_up: int,
    ) -> Drafted:
        """The same drafts."""
        spans: list[Span] = []
        rows: list[int] = []
        drawn: list[_Chain] = []
        asked: list[_Chain] = []  # whose guesses take more than a draw
        for i, w in enumerate(work):
            if w.extend:
                if w.want:
                    draw, enough = draws[i]
                    within = enough and chains.can_draw(draw)
                    (drawn if within else asked).append(_Chain(i, len(spans), draw))
                spans.append(Span(w.following, w.start, w.pages))
                rows += w.rows
        every = drawn + asked

        def guess(logits: Tensor, paths: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
            found = choose(logits, [(every[n].place, path) for n, path in paths], 1)
            return [best[0][0] if best else NO_TOKEN for best in found]

        batch = self.model.batch(spans, self.pool.page_size)
        gate = next((w.gate for w in work if w.gate is not None), None)
        gated = [work[c.place].gate is not None for c in drawn] + [False for _ in asked]
        found = chains.chains(
            batch, hidden, rows, self.pool, [c.span for c in every], [c.draw for c in every], guess,
            len(asked), gate, gated,
        )  # fmt: skip
        drafts = [NO_DRAFT for _ in work]
        for chain, draft in zip(every, found, strict=True):
            drafts[chain.place] = draft
        made = [len(d.bins) or len(d.tokens) for d in found]  # of a gated one, more than were kept
        return Drafted(drafts, caught_up + len(rows), _passes(made))

    def _catch_up(self, work: Sequence[Committed]) -> int:
        """Runs over the positions that had waited for this step, a piece at a time. How many there were."""
        rows = 0
        for spans, states in self.behind.pieces([w for w in work if w.extend]):
            batch = self.model.batch(spans, self.pool.page_size)
            rows += states.shape[0]
            self.model.draft(batch, take(self.model, states, list(range(states.shape[0]))), self.pool)
        return rows

    def _extend(self, hidden: Tensor, work: Sequence[Committed]) -> tuple[Tensor, Sequence[int], int]:
        """Runs over the true positions: states, each request's row that ends its own, how many ran."""
        batch = self.model.batch([Span(w.following, w.start, w.pages) for w in work], self.pool.page_size)
        rows = [row for w in work for row in w.rows]
        state = self.model.draft(batch, take(self.model, hidden, rows), self.pool)
        ends, last = [], -1
        for w in work:
            last += len(w.following)
            ends.append(last)
        return state, ends, len(rows)

    def _deeper(self, state: Tensor, growing: Sequence[Grown], depth: int) -> tuple[Tensor, int]:
        """Runs over frontiers, `depth` tokens from their roots: states, and how many rows ran. Afterwards
        each frontier's `rows` are of these."""
        batch = self.model.batch([g.span() for g in growing], self.pool.page_size)
        rows = [row for g in growing for row in g.rows]
        state = self.model.draft(batch, take(self.model, state, rows), self.pool)
        at = 0
        for g in growing:
            at += len(g.rows)
            g.rows = list(range(at - len(g.rows), at))
        return state, at


def _drawn(choose: ChooseDraft, index: int, work: Committed) -> tuple[Drawn, bool]:
    """As `ChooseDraft.drawn`, of as many guesses as the request wants or, where its chain would be gated and
    cannot be, as its gate says."""
    draw, enough = choose.drawn(index, work.want)
    if work.gate is None or enough:
        return draw, enough
    return draw._replace(rows=min(work.want, work.gate.ungated)), False


def _waits(chains: Chains, work: Sequence[Committed], draws: Mapping[int, tuple[Drawn, bool]]) -> bool:
    """Is there a chain to gate that the model cannot draw? Then the host chooses, guess by guess, and where
    it waits in any case, the rule can save passes too."""
    return any(
        enough and work[i].gate is not None and not chains.can_draw(draw)
        for i, (draw, enough) in draws.items()
    )


class _Gated:
    """The gated chains of a step while they grow, each guess drawn and its confidence looked at.

    places: of the step's requests. going: those chains that get a further guess."""

    def __init__(self, growing: Mapping[int, Grown], draws: Mapping[int, tuple[Drawn, bool]]) -> None:
        self.places = [i for i, (_, enough) in draws.items() if enough and growing[i].work.gate is not None]
        self._chains = self.going = [growing[i] for i in self.places]
        if self.places:
            gate = self.going[0].work.gate
            assert gate is not None
            self._rule = GatedChains(gate, [g.work.want for g in self.going])
            self._draws = [draws[i][0]._replace(rows=1) for i in self.places]
            self._bins = [b"" for _ in self.places]

    def guess(self, logits: Tensor, choose: ChooseDraft, others: bool) -> None:
        """logits: their rows first. others: see `GatedChains.guessed`."""
        going, made = self._rule.going, self._rule.made
        draws = [d._replace(position=d.position + made) for d in (self._draws[n] for n in going)]
        tokens, confidence = choose.draw(logits, draws)
        fell = bins(confidence)
        for n, token, k in zip(going, tokens, fell, strict=True):
            # NO_TOKEN of logits that are not finite: a draft of any token does no harm.
            self._chains[n].grow([[(max(0, token), 0.0)]])
            self._bins[n] += bytes((k,))
        self._rule.guessed(fell, others)
        self.going = [self._chains[n] for n in self._rule.going]

    def drafts(self) -> dict[int, Draft]:
        """By place."""
        if not self.places:
            return {}
        chains = zip(self.places, self._chains, self._rule.kept, self._bins, strict=True)
        return {i: Draft(g.tree.tokens[:kept], bins=fell) for i, g, kept, fell in chains}


def _passes(made: Sequence[int]) -> list[int]:
    """Rows of each pass beyond the first, where chains of so many guesses were made.

    >>> _passes([1, 4, 2, 2])
    [3, 1, 1]
    """
    ends = [0] * (max(made, default=0) + 1)
    for m in made:
        ends[m] += 1
    return [len(made) - n for n in accumulate(ends)][1:-1]


class Grown:
    """One request's tree, where its nodes' cache entries lie, and where in `state` its frontier is."""

    def __init__(self, work: Committed, topk: int, row: int) -> None:
        self.work, self.tree = work, Growing(topk)
        self.end = work.start + len(work.following)  # the first free slot
        self.rows = [row]  # of `state`, one for each node of the frontier
        self.slots: dict[int, list[int]] = {-1: []}  # of the entries on a node's path, from `end`

    def grow(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Afterwards `rows` are those that the new frontier grew from."""
        before = dict(zip(self.tree.frontier, self.rows, strict=True))
        self.tree.grow(children)
        self.rows = [before[self.tree.parents[node]] for node in self.tree.frontier]

    def place(self) -> None:
        """Gives the frontier its slots, to be drafted after."""
        used = len(self.slots) - 1
        for at, node in enumerate(self.tree.frontier):
            self.slots[node] = [*self.slots[self.tree.parents[node]], used + at]

    def span(self) -> Span:
        """The frontier, to be drafted after."""
        tree, pages = self.tree, self.work.pages
        tokens = [tree.tokens[node] for node in tree.frontier]
        self.place()
        paths = [self.slots[node] for node in tree.frontier]
        if tree.topk == 1:
            return Span(tokens, self.end + len(paths[0]) - 1, pages)
        return Span(tokens, self.end, pages, paths)
