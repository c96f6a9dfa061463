"""Chains drafted on a device that is not waited for: guesses are chosen there and put through the next pass
as they are, while the host, who knows where each will stand, prepares that pass. They are read at the end.

So a gate ends no chain early here: all guesses are made, and once they have been read, the gate's rule says
which of them would have been made and kept if it had been asked at every depth.

Chains whose guesses the host chooses are waited for at every depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

import torch
from torch import Tensor

from nextn.draft import Draft
from nextn.gate import Gate, GatedChains, bins
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import PackedBatch, Span
from nextn.models.base import GuessChains, Model, take
from nextn.ops.base import NO_TOKEN, Drawn


def draft_chains(
    model: Model,
    batch: PackedBatch,
    hidden: Tensor,
    rows: Sequence[int],
    pool: KVPool,
    after: Sequence[int],
    draws: Sequence[Drawn],
    guess: GuessChains,
    asked: int,
    gate: Gate | None,
    gated: Sequence[bool],
    best_token: Callable[[Tensor], tuple[Tensor, Tensor]],
) -> list[Draft]:
    """See `nextn.models.base.Chains`. The draws are greedy. best_token: see `nextn.ops.base.Ops`."""
    state = model.draft(batch, take(model, hidden, list(rows)), pool)
    ends = list(accumulate(len(span.tokens) for span in batch.spans))
    spans = [batch.spans[i] for i in after]
    at = [ends[i] - 1 for i in after]  # rows of state
    going = list(range(len(draws)))  # chains; those that the host guesses are last
    own = len(draws) - asked
    paths: dict[int, list[int]] = {i: [] for i in going}
    over: set[int] = set()  # chains that the host has ended
    chosen: list[tuple[list[int], Tensor]] = []
    leads: list[Tensor] = []  # by how much each of the drawn guesses was, where there is a gate
    for depth in range(1, max([d.rows for d in draws], default=0) + 1):
        frontier = take(model, state, at)
        logits = model.draft_logits(frontier)
        drawn = sum(i < own for i in going)
        if gate is None:
            tokens = logits[:drawn].argmax(dim=-1)
        else:
            tokens, confidence = best_token(logits[:drawn])
            leads.append(confidence)
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
    if gate is None:
        return [Draft(tokens) for tokens in made]
    fell = iter(bins(torch.cat(leads).tolist()))
    into = [bytearray() for _ in draws]
    for chains, _ in chosen:
        for i in (i for i in chains if i < own):
            into[i].append(next(fell))
    return _kept(gate, made, [bytes(b) if g else b"" for b, g in zip(into, gated, strict=True)])


def _kept(gate: Gate, made: Sequence[Sequence[int]], into: Sequence[bytes]) -> list[Draft]:
    """into: the bins of the gated chains' guesses."""
    through = [i for i, fell in enumerate(into) if fell]
    rule = GatedChains(gate, [len(made[i]) for i in through])
    longest = max((len(tokens) for i, tokens in enumerate(made) if not into[i]), default=0)
    depth = 0
    while rule.going:
        rule.guessed(bytes(into[through[n]][depth] for n in rule.going), longest > depth + 1)
        depth += 1
    kept = dict(zip(through, rule.kept, strict=True))
    return [Draft(tokens[: kept.get(i)], bins=into[i]) for i, tokens in enumerate(made)]
