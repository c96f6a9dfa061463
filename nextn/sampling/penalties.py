"""Changes logits before a draw: min_tokens, penalties for past tokens, the bias, the grammar's mask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from nextn.request import SamplingParams
from nextn.sampling.choice import Choice

# The smallest repetition penalty. Dividing by less makes logits infinite, and much less is 0 in f32.
LEAST_PENALTY = 1e-20


def penalized(params: SamplingParams, output: int) -> bool:
    """Whether the logits are changed before the draw of a token. output: number of output tokens before it.
    If they are not changed, they are not changed for later tokens either."""
    p = params
    return (
        output < p.min_tokens
        or p.repetition_penalty != 1.0
        or p.frequency_penalty != 0.0
        or p.presence_penalty != 0.0
        or bool(p.logit_bias)
        or p.constraint is not None
    )


def apply_penalties(logits: Tensor, choices: Sequence[Choice]) -> None:
    """Changes each choice's row in place: min_tokens, penalties for earlier tokens, bias, grammar's mask.

    min_tokens is ignored if the grammar allows only end tokens, or if all tokens are end tokens. So if the
    logits are finite, one stays finite, unless the grammar allows no token.
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
    """Whether only end tokens can be chosen."""
    if choice.allowed is None:
        return len(choice.end_ids) >= vocab
    tokens = choice.allowed.tokens
    return bool(np.count_nonzero(tokens) == np.count_nonzero(tokens[list(choice.end_ids)]))
