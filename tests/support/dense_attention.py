"""Attention over a paged latent cache, dense and in f64: the reference for the native kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from nextn.layers.batch import Span
from nextn.ops.base import KV_BLOCK


def paged(lengths: Sequence[tuple[int, int]], page: int, seed: int = 0) -> tuple[list[Span], int]:
    """Spans of (start, rows), each with its own pages in random order, and the number of slots of the
    pool."""
    need = [-(-(start + rows) // page) for start, rows in lengths]
    pages = random.Random(seed).sample(range(sum(need) + 5), sum(need))
    spans = []
    for (start, rows), n in zip(lengths, need, strict=True):
        spans.append(Span([0] * rows, start, pages[:n]))
        pages = pages[n:]
    return spans, (sum(need) + 5) * page


def tree_paths(rows: int, seed: int) -> list[list[int]]:
    """The paths of a random tree: each node's path is its parent's path and the node."""
    rng = random.Random(seed)
    paths = [[0]]
    for i in range(1, rows):
        paths.append([*paths[rng.randrange(i)], i])
    return paths


def entries(slots: int, rank: int, width: int, seed: int = 0) -> Tensor:
    """[slots, width] bf16. All columns are random; those from `rank` on are the rotary part."""
    gen = torch.Generator().manual_seed(seed)
    return torch.randn(slots, width, generator=gen).bfloat16()


def dense_attention(
    cache: Tensor, page: int, spans: Sequence[Span], q: Tensor, rank: int, key_at: int = 0
) -> tuple[Tensor, Tensor]:
    """Shapes as in `native_kernels.attention` -> (result in f64, largest error that rounding explains). The
    key is an entry's columns from key_at on, the value its first `rank` columns.

    The kernel rounds the weight of a key, exp(score - best score of its block of keys), to bf16. This
    function does the same. A score can round differently in f32 and in f64; then a weight is wrong by 2**-8
    of itself. That may happen to a few keys.
    """
    outs, bounds = [], []
    row = 0
    for span in spans:
        slots = (torch.tensor(span.pages)[:, None] * page + torch.arange(page)).flatten()
        for r in range(len(span.tokens)):
            path = list(range(r + 1)) if span.paths is None else list(span.paths[r])
            seen = torch.cat((slots[: span.start], slots[[span.start + p for p in path]]))
            both, length = cache[seen].double(), len(seen)
            keys, values = both[:, key_at:], both[:, :rank]
            scores = q[row].double() @ keys.T
            weights = torch.zeros_like(scores)
            top = scores.amax(-1, keepdim=True)
            for block in range(0, length, KV_BLOCK):
                part = scores[:, block : block + KV_BLOCK]
                best = part.amax(-1, keepdim=True).clamp(min=-1e30)
                rounded = (part - best).exp().float().bfloat16().double()
                weights[:, block : block + KV_BLOCK] = rounded * (best - top).exp()
            weights /= weights.sum(-1, keepdim=True)
            out = weights @ values
            # A tenth of a per cent of the weights, at least four, may round differently, and the result is
            # rounded to bf16.
            apart = max(4, length // 1000) * (weights[..., None] * values.abs()).amax(1)
            outs.append(out)
            bounds.append(2.0**-8 * (apart + out.abs()) + 1e-5)
            row += 1
    return torch.stack(outs), torch.stack(bounds)
