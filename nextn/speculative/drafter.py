"""The MTP drafter: keeps the NextN layer's cache true, and grows the next draft on it.

After a step committed m tokens of a request, its NextN layer runs over those m positions with the
target's true hidden states (draft extend), which writes over whatever earlier guesses had left there.
The last of these rows predicts the first guesses; each further depth feeds back the layer's own output
and its own last guesses, one position on. Nothing here can change a text, only how many drafts hold.

While a draft grows, what is grown on gets slots behind the committed ones, `topk` of them a depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from nextn.draft import NO_DRAFT, Draft, Shape
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Chains, Model, take
from nextn.ops.base import Drawn
from nextn.speculative.behind import Behind
from nextn.speculative.committed import Committed
from nextn.speculative.tree import Growing


class ChooseDraft(Protocol):
    """How a step's requests guess, each in its own verify mode."""

    def __call__(
        self, logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]], k: int
    ) -> list[list[tuple[int, float]]]:
        """(index into the step's requests, guesses so far) per row of logits -> the k best (token,
        log-probability) of each row, best first. The log-probability may be left at 0 when k is 1."""

    def draws(self, asked: Sequence[tuple[int, int]]) -> list[Drawn] | None:
        """(index into the step's requests, guesses wanted) -> how to draw them; None: one of them needs more
        than a draw."""


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


class MTPDrafter:
    def __init__(self, model: Model, pool: KVPool, shape: Shape, chains: Chains | None = None) -> None:
        """chains: the model, if it can."""
        self.model, self.pool, self.shape, self.chains = model, pool, shape, chains
        self.behind = Behind()

    def forget(self, rids: Sequence[str]) -> None:
        self.behind.drop(rids)

    def propose(self, hidden: Tensor, work: Sequence[Committed], choose: ChooseDraft) -> Drafted:
        extended = self._catch_up(work)
        self.behind.keep(hidden, work)
        if self.chains is not None and self.shape.topk == 1 and any(w.extend for w in work):
            draws = choose.draws([(i, w.want) for i, w in enumerate(work) if w.want])
            if draws is not None:
                return self._in_one_call(self.chains, hidden, work, draws, extended)
        now = [w for w in work if w.extend]
        if not now:
            return Drafted([NO_DRAFT for _ in work])
        state = self._extend(hidden, now)
        extended += sum(len(w.following) for w in now)
        passes: list[int] = []
        growing: dict[int, _Grown] = {}
        last = -1  # row of `state` that ends a request's run
        for i, w in enumerate(work):
            if w.extend:
                last += len(w.following)
            if w.want:
                growing[i] = _Grown(w, self.shape.topk, last)
        depth = 0
        left = list(growing.items())
        while left:
            state = take(self.model, state, [row for _, g in left for row in g.rows])
            asked = [(i, g.tree.path(node)) for i, g in left for node in g.tree.frontier]
            guesses = iter(choose(self.model.draft_logits(state), asked, self.shape.topk))
            for _, g in left:
                g.grow([next(guesses) for _ in g.tree.frontier])
            first = 0  # row of `state` of a request's first node
            for _, g in left:
                g.rows, first = [first + row for row in g.rows], first + g.count
            depth += 1
            left = [(i, g) for i, g in left if g.work.want > depth]
            if left:
                passes.append(sum(len(g.rows) for _, g in left))
                batch = self.model.batch([g.span() for _, g in left], self.pool.page_size)
                state = take(self.model, state, [row for _, g in left for row in g.rows])
                state = self.model.draft(batch, state, self.pool)
                row = 0
                for _, g in left:
                    g.rows = list(range(row, row + len(g.tree.frontier)))
                    row += len(g.tree.frontier)
        drafts = [
            growing[i].tree.best(self.shape.size(w.want)) if w.want else NO_DRAFT for i, w in enumerate(work)
        ]
        return Drafted(drafts, extended, passes)

    def _in_one_call(
        self,
        chains: Chains,
        hidden: Tensor,
        work: Sequence[Committed],
        draws: Sequence[Drawn],
        caught_up: int,
    ) -> Drafted:
        """The same drafts. draws: of the requests that want any."""
        spans: list[Span] = []
        rows: list[int] = []
        after: list[int] = []
        for w in work:
            if w.extend:
                if w.want:
                    after.append(len(spans))
                spans.append(Span(w.following, w.start, w.pages))
                rows += w.rows
        batch = self.model.batch(spans, self.pool.page_size)
        found = iter(chains.chains(batch, hidden, rows, self.pool, after, draws))
        drafts = [Draft(next(found)) if w.want else NO_DRAFT for w in work]
        deepest = max([d.rows for d in draws], default=1)
        passes = [sum([d.rows > depth for d in draws]) for depth in range(1, deepest)]
        return Drafted(drafts, caught_up + len(rows), passes)

    def _catch_up(self, work: Sequence[Committed]) -> int:
        """Runs over the positions that had waited for this step, a piece at a time. How many there were."""
        rows = 0
        for spans, states in self.behind.pieces([w for w in work if w.extend]):
            batch = self.model.batch(spans, self.pool.page_size)
            rows += states.shape[0]
            self.model.draft(batch, take(self.model, states, list(range(states.shape[0]))), self.pool)
        return rows

    def _extend(self, hidden: Tensor, work: Sequence[Committed]) -> Tensor:
        batch = self.model.batch([Span(w.following, w.start, w.pages) for w in work], self.pool.page_size)
        rows = [row for w in work for row in w.rows]
        return self.model.draft(batch, take(self.model, hidden, rows), self.pool)


class _Grown:
    """One request's tree, where its nodes' cache entries lie, and where in `state` its frontier is."""

    def __init__(self, work: Committed, topk: int, row: int) -> None:
        self.work, self.tree = work, Growing(topk)
        self.rows = [row]  # of `state`, one for each node of the frontier
        self.count = 1  # of them, before the last `grow`
        self.slots: dict[int, list[int]] = {-1: []}  # of the entries on a node's path, from the first free

    def grow(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """Afterwards `rows` are those that the new frontier grew from, counted from this request's first."""
        before = {node: at for at, node in enumerate(self.tree.frontier)}
        self.count = len(before)
        self.tree.grow(children)
        self.rows = [before[self.tree.parents[node]] for node in self.tree.frontier]

    def span(self) -> Span:
        """The frontier, to be drafted after."""
        tree, w = self.tree, self.work
        tokens = [tree.tokens[node] for node in tree.frontier]
        start, used = w.start + len(w.following), len(self.slots) - 1
        if tree.topk == 1:
            self.slots[tree.frontier[0]] = []
            return Span(tokens, start + used, w.pages)
        for at, node in enumerate(tree.frontier):
            self.slots[node] = [*self.slots[tree.parents[node]], used + at]
        return Span(tokens, start, w.pages, [self.slots[node] for node in tree.frontier])
