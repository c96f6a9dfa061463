"""The one place where a token is chosen: plain decode, verification and drafting all come here.

token_i = argmax(filter(logits_i) / T + G(seed, stream, i, .)), T < 1e-5: argmax(filter(logits_i)).

It depends on the tokens before i, the sampling parameters and i; not on drafts, batch or chunking. Where a
logit is NaN or +infinity there is no choice: NO_TOKEN.

The drafter draws with the same noise (common random numbers), which keeps its guesses close to the
target's choices at any temperature.

Shapes: N choices, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from nextn.constraint import Allowed
from nextn.engine.gumbel import gumbel_noise
from nextn.ops.base import NO_TOKEN, Draw, Drawn
from nextn.ops.best import best_token
from nextn.request import GREEDY_BELOW, SamplingParams

# A smaller repetition penalty counts as this: dividing by less makes logits infinite; less still is 0 in f32.
LEAST_PENALTY = 1e-20


@dataclass(frozen=True, slots=True)
class Choice:
    """What one choice depends on besides its logits. The token chosen becomes number `index`."""

    params: SamplingParams
    tokens: Sequence[int]  # committed tokens of the request
    path: Sequence[int]  # drafts assumed accepted after them
    num_prompt: int
    end_ids: frozenset[int]  # what ends the request; forbidden before min_tokens
    allowed: Allowed | None = None  # by the request's grammar; None: everything

    @property
    def index(self) -> int:
        return len(self.tokens) + len(self.path)

    @property
    def drawn(self) -> Drawn:
        return drawn(self.params, self.index)


def penalized(params: SamplingParams, output: int) -> bool:
    """Do the logits change before the draw of a token that `output` of the request's own come before? Where
    they do not, they do not for the tokens after it."""
    p = params
    return (
        output < p.min_tokens
        or p.repetition_penalty != 1.0
        or p.frequency_penalty != 0.0
        or p.presence_penalty != 0.0
        or bool(p.logit_bias)
        or p.constraint is not None
    )


def drawn(params: SamplingParams, position: int, rows: int = 1) -> Drawn:
    p = params
    return Drawn(p.seed, p.stream, position, p.temperature, p.top_p, p.min_p, p.top_k, rows)


def draw(logits: Tensor, draws: Sequence[Drawn], confidence: list[float] | None = None) -> list[int]:
    """`Draw` in plain torch."""
    draws = [Drawn(d[0], d[1], d.position + i, *d[3:7]) for d in draws for i in range(d.rows)]
    logits = logits[: len(draws)]
    _perturb_random(logits, draws)
    tokens = best_tokens(logits)
    if confidence is not None:
        _, ahead = best_token(logits)  # which writes over the logits
        scales = [d.temperature if d.temperature >= GREEDY_BELOW else 1.0 for d in draws]
        confidence += (ahead * torch.tensor(scales, device=ahead.device)).tolist()
    return tokens


def best_tokens(logits: Tensor) -> list[int]:
    """The argmax of each row; NO_TOKEN where that is not finite, as it is wherever a logit is NaN."""
    picked = logits.argmax(dim=-1, keepdim=True)
    finite = logits.gather(1, picked).abs() < math.inf
    tokens: list[int] = torch.where(finite, picked, NO_TOKEN)[:, 0].tolist()
    return tokens


def rank(logits: Tensor, choices: Sequence[Choice], k: int) -> list[list[tuple[int, float]]]:
    """As `choose`, the k best of each, best first, with the log-softmax of what they are best in: noise that
    the target will see too says more about its choice than the probabilities before the noise. That is
    -infinity of a token that may not be chosen, and NaN of all of them where there is no choice."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    _perturb_random(logits, [c.drawn for c in choices])
    best, ids = (t.tolist() for t in logits.log_softmax(dim=-1).topk(min(k, logits.shape[1]), dim=-1))
    return [list(zip(i, b, strict=True)) for i, b in zip(ids, best, strict=True)]


def choose(logits: Tensor, choices: Sequence[Choice], draw: Draw = draw) -> list[int]:
    """logits [N or more, V] f32 (padding rows at the end are ignored; rows may be written over) ->
    N token ids."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    return draw(logits, [c.drawn for c in choices])


def probabilities(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """As `choose`, the chance of each token to be chosen, [N, V] f32: softmax(filter(logits / T)), or all of
    it on the best token where the choice is greedy. Zeros where there is no choice."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    draws = [c.drawn for c in choices]
    best = logits.argmax(dim=-1, keepdim=True)
    chances = torch.zeros_like(logits).scatter_(1, best, logits.gather(1, best).isfinite().to(logits.dtype))
    random = [i for i, d in enumerate(draws) if d.temperature >= GREEDY_BELOW]
    if random:
        rows = torch.tensor(random, device=logits.device)
        scaled = _scaled(logits.index_select(0, rows), [draws[i] for i in random])
        soft = scaled.softmax(dim=-1)
        chances.index_copy_(0, rows, soft.masked_fill_(soft[:, :1].isnan(), 0.0))  # it is NaN all along
    return chances


def apply_penalties(logits: Tensor, choices: Sequence[Choice]) -> None:
    """In place, of each choice's row: penalties of what came before, the bias, then the grammar's mask.

    min_tokens gives way where the grammar allows nothing but the end, and where everything ends the request.
    So of finite logits one is left, unless the grammar allows nothing at all.
    """
    vocab = logits.shape[1]
    for i, c in enumerate(choices):
        p = c.params
        if not penalized(p, c.index - c.num_prompt):
            continue
        row = logits[i]
        if c.index - c.num_prompt < p.min_tokens and c.end_ids and not _only_ends(c, vocab):
            row[list(c.end_ids)] = float("-inf")
        if p.repetition_penalty != 1.0:
            seen = torch.from_numpy(np.unique(np.fromiter((*c.tokens, *c.path), dtype=np.int64)))
            seen = seen.to(row.device)
            values = row[seen]
            by = max(p.repetition_penalty, LEAST_PENALTY)
            row[seen] = torch.where(values > 0, values / by, values * by)
        if p.frequency_penalty or p.presence_penalty:
            output = np.fromiter((*c.tokens[c.num_prompt :], *c.path), dtype=np.int64)
            counts = torch.from_numpy(np.bincount(output, minlength=vocab)).to(row.device)
            row -= p.frequency_penalty * counts + p.presence_penalty * (counts > 0)
        if p.logit_bias:
            biased = torch.tensor(list(p.logit_bias), dtype=torch.int64, device=row.device)
            row[biased] += torch.tensor(list(p.logit_bias.values()), device=row.device)
        if c.allowed is not None:
            row.masked_fill_(~torch.from_numpy(c.allowed.tokens).to(row.device), float("-inf"))


def _only_ends(choice: Choice, vocab: int) -> bool:
    """Is there nothing to choose but what ends the request?"""
    if choice.allowed is None:
        return len(choice.end_ids) >= vocab
    tokens = choice.allowed.tokens
    return bool(np.count_nonzero(tokens) == np.count_nonzero(tokens[list(choice.end_ids)]))


def _perturb_random(logits: Tensor, draws: Sequence[Drawn]) -> None:
    """Of the rows that are sampled: filter(logits / T) + noise, in place."""
    random = [i for i, d in enumerate(draws) if d.temperature >= GREEDY_BELOW]
    if random:
        rows = torch.tensor(random, device=logits.device)
        logits.index_copy_(0, rows, _perturb(logits.index_select(0, rows), [draws[i] for i in random]))


def _scaled(logits: Tensor, draws: Sequence[Drawn]) -> Tensor:
    """filter(logits / T)."""

    def column(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=logits.device)[:, None]

    logits = logits / column([d.temperature for d in draws])
    return filter_logits(logits, [d.top_k for d in draws], [d.top_p for d in draws], [d.min_p for d in draws])


def _perturb(logits: Tensor, draws: Sequence[Drawn]) -> Tensor:
    noise = gumbel_noise(
        [d.seed for d in draws],
        [d.stream for d in draws],
        [d.position for d in draws],
        logits.shape[1],
        logits.device,
    )
    return _scaled(logits, draws) + noise


def filter_logits(logits: Tensor, top_k: list[int], top_p: list[float], min_p: list[float]) -> Tensor:
    """Sets to -inf what top-k, then top-p over what is left, then min-p exclude. [N, V] f32, already
    divided by the temperature. Among equal logits the smaller token id ranks first. The best token
    always stays."""
    vocab = logits.shape[1]
    rows = [
        i
        for i, (k, p, m) in enumerate(zip(top_k, top_p, min_p, strict=True))
        if 0 < k < vocab or p < 1.0 or m > 0.0
    ]
    if not rows:
        return logits

    def column(values: list[float]) -> Tensor:
        picked = [values[i] for i in rows]
        return torch.tensor(picked, dtype=torch.float32, device=logits.device)[:, None]

    index = torch.tensor(rows, device=logits.device)
    ordered, ids = logits.index_select(0, index).sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(vocab, device=logits.device)[None]
    ordered = ordered.masked_fill(
        rank >= column([float(k) if k > 0 else float(vocab) for k in top_k]), float("-inf")
    )
    probs = ordered.softmax(dim=-1)
    before = probs.cumsum(dim=-1) - probs
    drop = (before >= column(top_p)) | (probs < column(min_p) * probs[:, :1])
    drop[:, 0] = False
    ordered = ordered.masked_fill(drop, float("-inf"))
    kept = torch.empty_like(ordered).scatter_(1, ids, ordered)
    return logits.index_copy(0, index, kept)
