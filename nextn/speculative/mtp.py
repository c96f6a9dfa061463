"""The MTP drafter: updates the NextN layer's cache after a step, and makes the next drafts.

After a step has committed m tokens of a request, the NextN layer runs over these m positions, with hidden
states of the target (draft extend). This overwrites entries of earlier guesses. The last of these rows
predicts the first guesses. For each further depth, the layer runs over its last guesses, with its own output
as the hidden state. Nothing here can change a text, only the number of accepted drafts.

`MTPDrafter._grow` is the loop over depths. A model may have a faster way to make the same chains: all of them
in one call (`ChainDrafter`), or choices on the device, for which the host does not wait (`DeviceChoice`).

While a draft is made, its nodes use slots after the committed ones, `topk` slots for each depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nextn.cutoff import NO_GUESS, bins
from nextn.draft import NO_DRAFT, Draft, Shape
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Chain, ChainDrafter, ChainsRequest, DeviceChoice, Model, take
from nextn.ops.base import NO_TOKEN, Draw
from nextn.request import GREEDY_BELOW, Failure
from nextn.sampling.sampler import draw
from nextn.speculative.base import Drafted, DraftRequest, DraftSpan
from nextn.speculative.behind import Behind
from nextn.speculative.draft_state import DraftState
from nextn.speculative.grown import Cutting, Grown
from nextn.speculative.guesses import first_draw, guess


class MTPDrafter:
    def __init__(
        self, model: Model, pool: KVPool, shape: Shape, draw: Draw = draw, plain: bool = False
    ) -> None:
        """draw: the function that chooses guesses. plain: do not use the model's faster ways."""
        self.model, self.pool, self.shape, self.choose = model, pool, shape, draw
        chains = shape.topk == 1 and not plain
        self.chain_drafter = model if chains and isinstance(model, ChainDrafter) else None
        self.on_device = model if chains and isinstance(model, DeviceChoice) else None
        self.behind = Behind(pool.page_size)

    @property
    def cuts(self) -> bool:
        """Whether a cutoff may end drafts early."""
        return self.shape.topk == 1

    def forget(self) -> None:
        self.behind.forget()

    def drop(self, state: DraftState) -> None:
        self.behind.drop(state)

    def draft(self, request: DraftRequest) -> Drafted:
        hidden, spans = request
        for span in spans:
            if span.state.chances:
                span.state.chances = []  # for drafts that have been verified
        now = [span for span in spans if span.extend]
        if len(now) < len(spans):
            self.behind.keep(hidden, [span for span in spans if not span.extend] if now else spans)
        if not now:
            return Drafted([NO_DRAFT] * len(spans))
        caught_up = self._catch_up(now)
        chains = None if self.chain_drafter is None else _draws(now)
        drafts = [NO_DRAFT for _ in spans]
        if chains is not None:
            made, rows, passes = self._draft_chains(hidden, now, chains)
            places = [i for i, span in enumerate(spans) if span.num_steps]
            for i, draft in zip(places, made, strict=True):
                drafts[i] = draft
            return Drafted(drafts, caught_up + rows, passes)
        state, ends, ran = self._extend(hidden, now)
        rows_of = iter(ends)
        growing: list[Grown] = []
        for i, span in enumerate(spans):
            row = next(rows_of) if span.extend else -1
            if span.num_steps:
                growing.append(Grown(i, span, self.shape.topk, row))
        found, passes, failed = self._grow(state, growing)
        for g, draft in zip(growing, found, strict=True):
            drafts[g.index] = draft
        return Drafted(drafts, caught_up + ran, passes, failed)

    def _draft_chains(
        self, hidden: Tensor, now: Sequence[DraftSpan], chains: Sequence[Chain]
    ) -> tuple[list[Draft], int, Sequence[int]]:
        """The drafts of `_extend` and `_grow`, the number of extended rows, and the rows of each pass."""
        assert self.chain_drafter is not None
        batch = self.model.batch([Span(s.following, s.start, s.pages) for s in now], self.pool.page_size)
        rows = [row for span in now for row in span.rows]
        cutoff = next((span.cutoff for span in now if span.cutoff is not None), None)
        request = ChainsRequest(batch, hidden, rows, chains, cutoff)
        drafts, passes = self.chain_drafter.draft_chains(request, self.pool)
        return drafts, len(rows), passes

    def _catch_up(self, now: Sequence[DraftSpan]) -> int:
        """Runs over positions of earlier steps that did not extend, in pieces. Returns the number of rows."""
        ran = 0
        for owners, spans, states in self.behind.pieces(now):
            ran += self._run_layer(owners, spans, states, list(range(states.shape[0])))[2]
        return ran

    def _extend(self, hidden: Tensor, now: Sequence[DraftSpan]) -> tuple[Tensor, Sequence[int], int]:
        spans = [Span(s.following, s.start, s.pages) for s in now]
        return self._run_layer(now, spans, hidden, [row for span in now for row in span.rows])

    def _run_layer(
        self, owners: Sequence[DraftSpan], spans: Sequence[Span], hidden: Tensor, rows: list[int]
    ) -> tuple[Tensor, Sequence[int], int]:
        """Runs over the committed positions of `spans`, each of one of `owners`; their states are
        hidden[rows]. Returns the layer's states, the last row of each span, and the number of rows."""
        state = self.model.draft(
            self.model.batch(spans, self.pool.page_size), take(self.model, hidden, rows), self.pool
        )
        return state, [n - 1 for n in accumulate(len(span.tokens) for span in spans)], len(rows)

    def _grow(
        self, state: Tensor, every: Sequence[Grown]
    ) -> tuple[list[Draft], list[int], dict[int, Failure]]:
        """Makes guesses, depth by depth. state: the hidden states that the drafts' `rows` refer to. Returns
        the drafts, the rows of each pass, and why requests failed, by index of their span."""
        cutting = Cutting([g for g in every if g.cut])
        drawn = [g for g in every if g.draw is not None and not g.cut]
        growing = [*cutting.chains, *drawn, *(g for g in every if g.draw is None)]
        device = self.on_device if all(map(_greedy, growing)) else None
        unread: list[tuple[list[Grown], Tensor, Tensor]] = []  # chains, tokens and confidence, by depth
        passes: list[int] = []
        failed: dict[int, Failure] = {}
        depth = 0
        while growing:
            rows = [row for g in growing for row in g.rows]
            ends = take(self.model, state, rows)
            if device is None:
                self._guess(self.model.draft_logits(ends), growing, depth, failed)
            else:
                unread.append((growing, *device.best_draft(ends)))
                for g in growing:
                    g.tree.append(0)  # until the token is read
            depth += 1
            others = [g for g in growing if not g.cut and g.num_steps > depth and g.tree.frontier]
            if device is None:
                cutting.guessed(depth, bool(others))
                left = [*cutting.going, *others]
            else:
                left = [g for g in growing if g.num_steps > depth]
            if left:
                tokens = None
                if unread:
                    places = [n for n, g in enumerate(growing) if g.num_steps > depth]
                    tokens = take(self.model, unread[-1][1], places)
                state, ran = self._deeper(state, left, depth, tokens)
                passes.append(ran)
            growing = left
        if unread:
            _read(unread, cutting, drawn)
        kept = cutting.kept
        return [g.draft(self.shape, kept.get(g.index)) for g in every], passes, failed

    def _guess(
        self, logits: Tensor, growing: Sequence[Grown], depth: int, failed: dict[int, Failure]
    ) -> None:
        """Makes the guesses of one depth. logits: a row for each node to guess after, in order."""
        draws = [g.draw._replace(position=g.draw.position + depth) for g in growing if g.draw is not None]
        n = len(draws)
        if draws:
            confidence: list[float] | None = [] if growing[0].cut else None
            tokens = self.choose(logits[:n], draws, confidence)
            for g, token in zip(growing, tokens, strict=False):
                if token == NO_TOKEN:
                    g.grow([[]])
                else:
                    g.tree.append(token)
            for g, token, bin_ in zip(growing, tokens, bins(confidence) if confidence else b"", strict=False):
                g.bins.append(NO_GUESS if token == NO_TOKEN else bin_)
        others = growing[n:]
        if others:
            places = [place for g in others for place in g.places]
            found = iter(guess(logits[n:], places, self.shape.topk, self.choose, failed))
            for g in others:
                g.grow([next(found) for _ in g.tree.frontier])

    def _deeper(
        self, state: Tensor, growing: Sequence[Grown], depth: int, tokens: Tensor | None
    ) -> tuple[Tensor, int]:
        """Runs over the last guesses of each draft. Returns the states and the number of rows. Each draft's
        `rows` refer to these states afterwards. tokens: if given, the rows' tokens, on the device."""
        batch = self.model.batch([g.deeper() for g in growing], self.pool.page_size)
        if tokens is not None:
            batch.tokens = tokens
        rows = [row for g in growing for row in g.rows]
        state = self.model.draft(batch, take(self.model, state, rows), self.pool)
        at = 0
        for g in growing:
            at += len(g.rows)
            g.rows = list(range(at - len(g.rows), at))
        return state, at


def _draws(now: Sequence[DraftSpan]) -> list[Chain] | None:
    """The chains to draft; None if one request needs more than a draw for a guess."""
    chains = []
    for n, span in enumerate(now):
        if span.num_steps:
            draw = first_draw(span)
            if draw is None:
                return None
            chains.append(Chain(n, draw, span.num_steps, span.cutoff is not None))
    return chains


def _greedy(g: Grown) -> bool:
    return g.draw is not None and g.draw.temperature < GREEDY_BELOW


def _read(
    unread: Sequence[tuple[list[Grown], Tensor, Tensor]], cutting: Cutting, others: Sequence[Grown]
) -> None:
    """Waits for the guesses that were chosen on the device. The device made all guesses; the cutoff now
    decides which of them are kept, as if it had been applied at every depth."""
    tokens = iter(torch.cat([chosen for _, chosen, _ in unread]).tolist())
    found_bins = iter(bins(torch.cat([confidence for _, _, confidence in unread]).tolist()))
    for depth, (chains, _, _) in enumerate(unread):
        for g in chains:
            g.tree.tokens[depth] = next(tokens)
            g.bins.append(next(found_bins))
    for depth in range(1, len(unread) + 1):
        cutting.guessed(depth, any(g.num_steps > depth for g in others))
