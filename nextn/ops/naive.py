"""MLA with keys and values expanded, in plain torch for every backend: fewer operations for long prompts."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.ops.base import Spans
from nextn.ops.gather import gathered


def naive_attention(
    q: Tensor, cache: Tensor, spans: Spans, rank: int, key_up: Tensor, value_up: Tensor
) -> Tensor:
    """See `nextn.ops.base.Ops`."""
    heads = q.shape[1]
    queries = gathered(spans, heads, prompts=True)
    outs = []
    for g in queries.groups:
        b, n, s = g.size
        entries = cache.index_select(0, g.slots).view(b, 1, s, -1)
        latent, rope = entries[..., :rank], entries[..., rank:]
        keys = torch.cat((latent @ key_up.transpose(1, 2), rope.expand(-1, heads, -1, -1)), dim=-1)
        query = q.index_select(0, g.rows).view(b, n, heads, -1).transpose(1, 2)
        scores = (query @ keys.transpose(2, 3)).float().masked_fill_(g.hidden.transpose(1, 2), -torch.inf)
        mixed = scores.softmax(-1).to(q.dtype) @ (latent @ value_up)
        outs.append(mixed.transpose(1, 2).flatten(0, 1))
    return torch.cat(outs).index_select(0, queries.back)
