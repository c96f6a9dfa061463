"""Runs a plan on one device: one ragged target forward, choose and verify, then the next drafts."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.engine.logprobs import Asked, prompt_logprobs, token_logprobs
from nextn.engine.sampler import Choice, Draw, choose, draw
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.models.base import Model, take
from nextn.request import TokenLogprob
from nextn.scheduler.plan import Plan, Row, RowResult, StepResult
from nextn.speculative.drafter import Committed, Drafter
from nextn.speculative.verify import accepted_drafts


class Runner:
    """An executor of one process. Others have the same `run`."""

    def __init__(self, model: Model, pool: KVPool, drafter: Drafter, draw: Draw = draw) -> None:
        """draw: what chooses among logits; a backend may bring its own."""
        self.model, self.pool, self.drafter, self.draw = model, pool, drafter, draw

    @torch.inference_mode()
    def run(self, plan: Plan) -> StepResult:
        rows = plan.rows
        spans = [Span(r.tokens, r.start, r.pages) for r in rows]
        hidden = self.model.forward(self.model.batch(spans, self.pool.page_size), self.pool)
        chosen, raw = self._choose(hidden, rows)
        new = [
            c[: accepted_drafts(r.drafts, c) + 1] if r.chooses else []
            for r, c in zip(rows, chosen, strict=True)
        ]

        def choose_draft(logits: Tensor, asked: Sequence[tuple[int, Sequence[int]]]) -> list[int]:
            return choose(logits, [_choice(rows[i], (*new[i], *path)) for i, path in asked], self.draw)

        told = _output_logprobs(raw, rows, new)
        scored = prompt_logprobs(self.model, hidden, _asked_of_prompts(rows))
        drafts = self.drafter.propose(hidden, _committed(rows, new), choose_draft)
        return [
            RowResult(t, d, o, [next(scored) for _ in r.scores])
            for r, t, d, o in zip(rows, new, drafts, told, strict=True)
        ]

    def _choose(self, hidden: Tensor, rows: Sequence[Row]) -> tuple[list[list[int]], Tensor | None]:
        """The target's choices of every row: after the root and after each draft. And a copy of the logits
        of those rows that want log-probabilities, as `choose` may write over them."""
        index: list[int] = []
        choices: list[Choice] = []
        at = 0
        for r in rows:
            at += len(r.tokens)
            if r.chooses:
                index.extend(range(at - r.num_drafts - 1, at))
                drafts = r.drafts
                choices.extend(_choice(r, drafts[:j]) for j in range(r.num_drafts + 1))
        if not index:
            return [[] for _ in rows], None
        logits = self.model.logits(take(self.model, hidden, index))
        wanted = [i for i, c in enumerate(choices) if c.params.logprobs is not None]
        raw = logits[wanted] if wanted else None
        tokens = iter(choose(logits, choices, self.draw))
        return [[next(tokens) for _ in range(r.num_drafts + 1)] if r.chooses else [] for r in rows], raw


def _choice(row: Row, path: Sequence[int]) -> Choice:
    return Choice(row.params, row.history, path, row.num_prompt, row.end_ids)


def _output_logprobs(
    raw: Tensor | None, rows: Sequence[Row], new: Sequence[list[int]]
) -> list[list[TokenLogprob] | None]:
    """Of the tokens that each row commits. `raw`: see `Runner._choose`."""
    if raw is None:
        return [None] * len(rows)
    asked: list[Asked] = []
    at = 0
    for r, tokens in zip(rows, new, strict=True):
        if r.chooses and r.params.logprobs is not None:
            asked += [Asked(at + i, token, r.params.logprobs) for i, token in enumerate(tokens)]
            at += r.num_drafts + 1
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


def _committed(rows: Sequence[Row], new: Sequence[list[int]]) -> list[Committed]:
    out = []
    at = 0
    for r, tokens in zip(rows, new, strict=True):
        # Rejected drafts are left out; what follows the last true position is the bonus token.
        known = r.tokens[1 : len(r.tokens) - r.num_drafts]
        following = [*known, *tokens] if r.chooses else [*r.tokens[1:], r.following]
        # A request that ends with this step needs no drafts; nor may drafts outrun its limit.
        ended = not r.end_ids.isdisjoint(tokens)
        want = 0 if ended else max(0, min(r.draft_next, r.room - len(tokens) - 1))
        out.append(Committed(r.start, at, following, r.pages, want))
        at += len(r.tokens)
    return out
