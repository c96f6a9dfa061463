"""Log-probabilities of tokens: log_softmax of the target's raw logits, for the rows that asked.

What is told of a row depends on that row alone: log_softmax works row by row, and the most likely tokens
are picked among rows that want equally many. So MTP, batch and chunking do not show in it, to the bit.

Shapes: N rows, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.models.base import Model, take
from nextn.models.names import expected_tensors
from nextn.request import TokenLogprob

# What softmax, the best tokens and their Python objects take for each logit, in multiplications of the
# model's layers: measured.
TELLING = 256
ROWS = 64  # at a time: bounds the memory, 64 rows of 129,280 logits are 32 MiB


class Asked(NamedTuple):
    """One log-probability to tell: of `token` by the logits or hidden state in row `row`, and of the `top`
    most likely ones."""

    row: int
    token: int
    top: int


def token_logprobs(logits: Tensor, asked: Sequence[Asked]) -> list[TokenLogprob]:
    """logits [N, V] f32, raw -> one answer for each question. Rows that nobody asks for cost nothing."""
    told: dict[int, TokenLogprob] = {}
    for top in {a.top for a in asked}:
        alike = [i for i, a in enumerate(asked) if a.top == top]
        for begin in range(0, len(alike), ROWS):
            some = alike[begin : begin + ROWS]
            told |= zip(some, _tell(logits, [asked[i] for i in some], top), strict=True)
    return [told[i] for i in range(len(asked))]


def _tell(logits: Tensor, asked: Sequence[Asked], top: int) -> list[TokenLogprob]:
    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=logits.device)

    logprobs = logits.index_select(0, column([a.row for a in asked])).log_softmax(dim=-1)
    own = logprobs.gather(1, column([a.token for a in asked])[:, None])[:, 0].tolist()
    best, ids = (t.tolist() for t in logprobs.topk(min(top, logprobs.shape[1]), dim=-1))
    # Among equals the smaller id comes first, as in the choice of a token.
    return [
        TokenLogprob(p, sorted(zip(i, b, strict=True), key=lambda pair: (-pair[1], pair[0])))
        for p, i, b in zip(own, ids, best, strict=True)
    ]


def prompt_logprobs(model: Model, hidden: Tensor, asked: Sequence[Asked]) -> Iterator[TokenLogprob]:
    """hidden [T, C] of the target's step -> one answer for each question. The logits are made a few rows
    at a time."""
    for begin in range(0, len(asked), ROWS):
        some = asked[begin : begin + ROWS]
        logits = model.logits(take(model, hidden, [a.row for a in some]))
        yield from token_logprobs(logits, [a._replace(row=i) for i, a in enumerate(some)])


def score_cost(cfg: ModelConfig) -> float:
    """What the log-probability at a position costs, in rows of the model's layers: the head's product and
    what becomes of the logits, over all other products of a row."""
    return cfg.vocab_size * (cfg.hidden_size + TELLING) / _row_products(cfg)


def context_cost(cfg: ModelConfig) -> float:
    """What each position that a row attends to costs, in rows of the model's layers without attention: the
    products with a cached entry, as a key and as a value."""
    entry = 2 * cfg.kv_lora_rank + cfg.qk_rope_head_dim
    return cfg.num_hidden_layers * cfg.num_attention_heads * entry / _row_products(cfg)


def _row_products(cfg: ModelConfig) -> float:
    """Multiplications of a row with the weights of all layers."""
    routed = cfg.num_experts_per_tok / cfg.n_routed_experts if cfg.n_routed_experts else 0.0
    return sum(
        math.prod(shape) * (routed if ".mlp.experts." in name else 1.0)
        for name, shape in expected_tensors(cfg, 0).items()
        if name.startswith("model.layers.") and len(shape) == 2
    )
