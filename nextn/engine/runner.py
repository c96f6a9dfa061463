"""Runs a plan on one device: one ragged target forward, choose and verify, then the next drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.draft import MAX_DRAFTS, Draft
from nextn.engine.logprobs import Asked, prompt_logprobs, token_logprobs
from nextn.engine.sampler import draw
from nextn.engine.verifier import WITH_DRAFT_PROBABILITIES, Guess, Verified, Verifier
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.ops.base import Draw, Drawn
from nextn.request import TokenLogprob
from nextn.scheduler.plan import Plan, Row, RowResult, StepResult
from nextn.speculative.committed import Committed
from nextn.speculative.depth.cost import StepWork
from nextn.speculative.drafter import Drafter

NOTHING = Verified([], [])
_USUAL = 2  # drafts that a gate lets through, or so


class _ChooseDraft:
    """`nextn.speculative.drafter.ChooseDraft` of one step."""

    def __init__(self, verifier: Verifier, rows: Sequence[Row], new: Sequence[list[int]]) -> None:
        self.verifier, self.rows, self.new = verifier, rows, new

    def __call__(
        self, logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]], k: int
    ) -> list[list[tuple[int, float]]]:
        return self.verifier.guess(logits, [Guess(self.rows[i], self.new[i], path) for i, path in asked], k)

    def drawn(self, index: int, count: int) -> tuple[Drawn, bool]:
        return self.verifier.drawn(self.rows[index], self.new[index], count)

    def draw(self, logits: Tensor, draws: Sequence[Drawn]) -> tuple[list[int], list[float]]:
        confidence: list[float] = []
        return self.verifier.draw(logits, draws, confidence), confidence


class Runner:
    """An executor of one process. Others have the same `run`."""

    def __init__(
        self,
        model: Model,
        pool: KVPool,
        drafter: Drafter,
        draw: Draw = draw,
        accept_length: float | None = None,
    ) -> None:
        """draw: what chooses among logits; a backend may bring its own. accept_length: simulated."""
        self.model, self.pool, self.drafter = model, pool, drafter
        self.verifier = Verifier(draw, accept_length)

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        self.drafter.forget(plan.gone)
        rows = plan.rows
        spans = [Span(r.tokens, r.start, r.pages, r.draft.paths()) for r in rows]
        hidden = self.model.forward(self.model.batch(spans, self.pool.page_size), self.pool)
        verified, raw = self._verify(hidden, rows)
        accepted, new = [v.path for v in verified], [v.tokens for v in verified]
        self.verifier.forget()
        self._compact(rows, accepted)

        told = _output_logprobs(raw, rows, new, accepted)
        scored = prompt_logprobs(self.model, hidden, _asked_of_prompts(rows))
        choose_draft = _ChooseDraft(self.verifier, rows, new)
        committed = _committed(rows, verified, self.pool.page_size)
        forced = _forced(rows, committed)
        made = self.drafter.propose(hidden, committed, choose_draft)
        results = [
            RowResult(
                v.tokens,
                f or (d if r.grammar is None else r.grammar.prune(d)),
                o,
                [next(scored) for _ in r.scores],
                v.ended,
                v.error,
            )
            for r, v, d, f, o in zip(rows, verified, made.drafts, forced, told, strict=True)
        ]
        decoding = sum(r.chooses for r in rows)
        drafts = sum([len(r.draft.tokens) for r in rows])
        context = sum([r.start for r in rows if r.chooses])
        ran = sum(len(r.tokens) for r in rows)
        work = StepWork(ran, made.extended, tuple(made.passes), decoding, drafts, context)
        return StepResult(results, work)

    def _verify(self, hidden: Tensor, rows: Sequence[Row]) -> tuple[list[Verified], Tensor | None]:
        """Of every row the nodes that hold and the tokens that it commits; neither for a part of a prompt.
        And a copy of the logits of those rows that want log-probabilities, as the others are written over."""
        index: list[int] = []
        wanted: list[int] = []
        at = 0
        for r in rows:
            at += len(r.tokens)
            if r.chooses:
                if r.params.logprobs is not None:
                    wanted.extend(range(len(index), len(index) + len(r.draft) + 1))
                index.extend(range(at - len(r.draft) - 1, at))
        if not index:
            return [NOTHING for _ in rows], None
        logits = self.model.logits(take(self.model, hidden, index))
        raw = logits[wanted] if wanted else None
        verified = iter(self.verifier.verify(logits, [r for r in rows if r.chooses]))
        return [next(verified) if r.chooses else NOTHING for r in rows], raw

    def _compact(self, rows: Sequence[Row], accepted: Sequence[Sequence[int]]) -> None:
        """Moves the target's cache entries of accepted nodes to the slots of their positions. In a chain they
        lie there already."""
        source: list[int] = []
        target: list[int] = []
        for r, path in zip(rows, accepted, strict=True):
            for depth, node in enumerate(path, start=1):
                if node + 1 != depth:
                    source.append(self.pool.slot(r.pages, r.start + node + 1))
                    target.append(self.pool.slot(r.pages, r.start + depth))
        if source:
            self.pool.move(source, target, self.model.config.num_hidden_layers)


def _output_logprobs(
    raw: Tensor | None, rows: Sequence[Row], new: Sequence[list[int]], accepted: Sequence[Sequence[int]]
) -> list[list[TokenLogprob] | None]:
    """Of the tokens that each row commits. `raw`: see `Runner._verify`."""
    if raw is None:
        return [None] * len(rows)
    asked: list[Asked] = []
    at = 0
    for r, tokens, path in zip(rows, new, accepted, strict=True):
        if r.chooses and r.params.logprobs is not None:
            chosen_at = (0, *(node + 1 for node in path))
            asked += [
                Asked(at + i, token, r.params.logprobs) for i, token in zip(chosen_at, tokens, strict=True)
            ]
            at += len(r.draft) + 1
    told = iter(token_logprobs(raw, asked))
    return [
        [next(told) for _ in tokens] if r.chooses and r.params.logprobs is not None else None
        for r, tokens in zip(rows, new, strict=True)
    ]


def _asked_of_prompts(rows: Sequence[Row]) -> list[Asked]:
    asked: list[Asked] = []
    at = 0
    for r in rows:
        after = [*r.tokens[1:], r.following] if r.scores else ()
        asked += [Asked(at + i, after[i], r.params.prompt_logprobs or 0) for i in r.scores]
        at += len(r.tokens)
    return asked


def _forced(rows: Sequence[Row], work: Sequence[Committed]) -> list[Draft | None]:
    """Drafts of requests whose grammar leaves one way to go on for as many tokens as they want drafts, or for
    more. All of them hold, and the drafter need not run for them: it is asked for none."""
    drafts: list[Draft | None] = [None for _ in rows]
    for i, (r, w) in enumerate(zip(rows, work, strict=True)):
        if r.grammar is not None and w.want and r.params.verify_mode not in WITH_DRAFT_PROBABILITIES:
            tokens = r.grammar.forced(min(MAX_DRAFTS, r.room - len(w.chosen) - 1))
            # Where a gate says how deep drafts go, few come to what is wanted at most.
            if len(tokens) >= (w.want if w.gate is None else min(w.want, _USUAL)):
                drafts[i], w.want = Draft(tokens, forced=True), 0
    return drafts


def _committed(rows: Sequence[Row], verified: Sequence[Verified], page_size: int) -> list[Committed]:
    out = []
    at = 0
    for r, v in zip(rows, verified, strict=True):
        path, tokens = v.path, v.tokens
        # Rejected guesses are left out; what follows the last true position is the bonus token.
        known = r.known
        following = [*r.tokens[1:known], *(tokens if r.chooses else (r.following,))]
        true: Sequence[int] = range(at, at + known + len(path))
        if r.draft.parents is not None:
            true = [*range(at, at + known), *(at + known + node for node in path)]
        # A request that ends with this step needs no drafts; nor may drafts outrun its limit.
        ended = v.ended or v.error is not None or not r.end_ids.isdisjoint(tokens)
        want = 0 if ended else max(0, min(r.draft_next, r.room - len(tokens) - 1))
        pages = r.pages[r.draft_from // page_size :] if r.draft_from else r.pages
        out.append(
            Committed(
                r.rid,
                r.start - r.draft_from,
                true,
                following,
                pages,
                want,
                r.history,
                tokens,
                r.draft_from,
                r.extend,
                r.gate,
            )
        )
        at += len(r.tokens)
    return out
