"""Chains drafted on a device that is not waited for: guesses are chosen there and put through the next pass
as they are, while the host, who knows where each will stand, prepares that pass. They are read at the end.

Chains whose guesses the host chooses are waited for at every depth.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nextn.draft import Draft
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.layers.paged_batch import PagedBatch
from nextn.models.base import GuessChains, Model, take
from nextn.ops.base import NO_TOKEN, Drawn


def draft_chains(
    model: Model,
    batch: PagedBatch,
    hidden: Tensor,
    rows: Sequence[int],
    pool: KVPool,
    after: Sequence[int],
    draws: Sequence[Drawn],
    guess: GuessChains,
    asked: int,
) -> list[Draft]:
    """See `nextn.models.base.Chains`. The draws are greedy."""
    state = model.draft(batch, take(model, hidden, list(rows)), pool)
    ends = list(accumulate(len(span.tokens) for span in batch.spans))
    spans = [batch.spans[i] for i in after]
    at = [ends[i] - 1 for i in after]  # rows of state
    going = list(range(len(draws)))  # chains; those that the host guesses are last
    own = len(draws) - asked
    paths: dict[int, list[int]] = {i: [] for i in going}
    over: set[int] = set()  # chains that the host has ended
    chosen: list[tuple[list[int], Tensor]] = []
    for depth in range(1, max([d.rows for d in draws], default=0) + 1):
        frontier = take(model, state, at)
        logits = model.draft_logits(frontier)
        drawn = sum(i < own for i in going)
        tokens = logits[:drawn].argmax(dim=-1)
        if drawn < len(going):
            others = going[drawn:]
            guesses = guess(logits[drawn:], [(i, list(paths[i])) for i in others])
            for i, token in zip(others, guesses, strict=True):
                paths[i].append(token)
                if token == NO_TOKEN:
                    over.add(i)
            tokens = torch.cat((tokens, torch.tensor(guesses, device=tokens.device)))
        chosen.append((going, tokens))
        at = [n for n, i in enumerate(going) if draws[i].rows > depth and i not in over]
        going = [going[n] for n in at]
        if not going:
            break
        ahead = [Span((0,), spans[i].start + len(spans[i].tokens) + depth - 1, spans[i].pages) for i in going]
        deeper = model.batch(ahead, pool.page_size)
        deeper.tokens = take(model, tokens, at)
        state = model.draft(deeper, take(model, frontier, at), pool)
        at = list(range(len(going)))
    if not chosen:
        return []
    every = iter(torch.cat([tokens for _, tokens in chosen]).tolist())
    made: list[list[int]] = [[] for _ in draws]
    for chains, _ in chosen:
        for i in chains:
            token = next(every)
            if token != NO_TOKEN:
                made[i].append(token)
    return [Draft(tokens) for tokens in made]
