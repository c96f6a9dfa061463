"""The one place where a token is chosen. Plain decode, verification and drafting all use it.

token_i = argmax(filter(logits_i) / T + G(seed, stream, i, .)), and for T < 1e-5: argmax(filter(logits_i)).

A choice depends on the tokens before i, the sampling parameters and i. It does not depend on drafts, batch or
chunking. If a logit is NaN or +infinity, no token can be chosen, and the result is NO_TOKEN.

The drafter draws with the same noise (common random numbers), which keeps its guesses close to the
target's choices at any temperature.

Shapes: N choices, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.ops.base import NO_TOKEN, Draw, DrawParams
from nextn.ops.best import best_token
from nextn.request import GREEDY_BELOW
from nextn.sampling.choice import Choice
from nextn.sampling.filters import scaled_logits
from nextn.sampling.gumbel import gumbel_noise
from nextn.sampling.penalties import apply_penalties


def draw(logits: Tensor, draws: Sequence[DrawParams], confidence: list[float] | None = None) -> list[int]:
    """`Draw` in plain torch."""
    draws = [DrawParams(d[0], d[1], d.position + i, *d[3:7]) for d in draws for i in range(d.rows)]
    logits = logits[: len(draws)]
    _perturb_random(logits, draws)
    tokens: list[int] = best_tokens(logits).tolist()
    if confidence is not None:
        _, lead = best_token(logits)  # overwrites the logits
        scales = [d.temperature if d.temperature >= GREEDY_BELOW else 1.0 for d in draws]
        confidence += (lead * torch.tensor(scales, device=lead.device)).tolist()
    return tokens


def best_tokens(logits: Tensor) -> Tensor:
    """[N] int64: the argmax of each row, or NO_TOKEN if its logit is not finite. It is NaN if any is NaN."""
    picked = logits.argmax(dim=-1, keepdim=True)
    finite = logits.gather(1, picked).abs() < math.inf
    return torch.where(finite, picked, NO_TOKEN)[:, 0]


def rank(logits: Tensor, choices: Sequence[Choice], k: int) -> list[list[tuple[int, float]]]:
    """Like `choose`, but the k best tokens of each choice, best first, with the log-softmax of the logits
    after the noise. The target uses the same noise, so these values predict its choice better than
    probabilities without noise. -infinity for a forbidden token; all NaN if no token can be chosen."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    _perturb_random(logits, [c.draw for c in choices])
    best, ids = (t.tolist() for t in logits.log_softmax(dim=-1).topk(min(k, logits.shape[1]), dim=-1))
    return [list(zip(i, b, strict=True)) for i, b in zip(ids, best, strict=True)]


def choose(logits: Tensor, choices: Sequence[Choice], draw: Draw = draw) -> list[int]:
    """logits [N or more, V] f32 -> N token ids. Padding rows at the end are ignored. Logits may be
    overwritten."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    return draw(logits, [c.draw for c in choices])


def probabilities(logits: Tensor, choices: Sequence[Choice]) -> Tensor:
    """For the choices of `choose`, the probability of each token, [N, V] f32: softmax(filter(logits / T)), or
    1 for the best token if the choice is greedy. All zeros if no token can be chosen."""
    logits = logits[: len(choices)]
    apply_penalties(logits, choices)
    draws = [c.draw for c in choices]
    best = logits.argmax(dim=-1, keepdim=True)
    chances = torch.zeros_like(logits).scatter_(1, best, logits.gather(1, best).isfinite().to(logits.dtype))
    random = [i for i, d in enumerate(draws) if d.temperature >= GREEDY_BELOW]
    if random:
        rows = torch.tensor(random, device=logits.device)
        scaled = scaled_logits(logits.index_select(0, rows), [draws[i] for i in random])
        soft = scaled.softmax(dim=-1)
        chances.index_copy_(0, rows, soft.masked_fill_(soft[:, :1].isnan(), 0.0))  # then the row is all NaN
    return chances


def _perturb_random(logits: Tensor, draws: Sequence[DrawParams]) -> None:
    """Replaces sampled rows by filter(logits / T) + noise, in place."""
    random = [i for i, d in enumerate(draws) if d.temperature >= GREEDY_BELOW]
    if random:
        rows = torch.tensor(random, device=logits.device)
        logits.index_copy_(0, rows, _perturb(logits.index_select(0, rows), [draws[i] for i in random]))


def _perturb(logits: Tensor, draws: Sequence[DrawParams]) -> Tensor:
    noise = gumbel_noise(
        [d.seed for d in draws],
        [d.stream for d in draws],
        [d.position for d in draws],
        logits.shape[1],
        logits.device,
    )
    return scaled_logits(logits, draws) + noise
