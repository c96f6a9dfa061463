"""The cost of log-probabilities and of context, in rows of the model's layers. Pure functions."""

from __future__ import annotations

import math

from nextn.families.config import ModelConfig
from nextn.families.names import numbered
from nextn.models.names import expected_tensors

# Measured time of softmax, the best tokens and their Python objects per logit, in multiplications of the
# model's layers.
LOGPROB_WORK = 256


def score_cost(cfg: ModelConfig) -> float:
    """The cost of the log-probability at a position, in rows of the model's layers: the head's product and
    the work on its logits, divided by all other products of a row."""
    return cfg.vocab_size * (cfg.hidden_size + LOGPROB_WORK) / _row_products(cfg)


def context_cost(cfg: ModelConfig) -> float:
    """The cost of each position that a row attends to, in rows of the model's layers without attention: the
    products with a cached entry, as a key and as a value."""
    entry = 2 * cfg.kv_lora_rank + cfg.qk_rope_head_dim if cfg.gqa is None else 2 * cfg.gqa.head_dim
    return cfg.num_hidden_layers * cfg.num_attention_heads * entry / _row_products(cfg)


def _row_products(cfg: ModelConfig) -> float:
    """Number of multiplications of a row with the weights of all layers."""
    routed = cfg.num_experts_per_tok / cfg.n_routed_experts if cfg.n_routed_experts else 0.0
    names = cfg.names
    is_routed = numbered(names.layer + names.expert).match
    return sum(
        math.prod(shape) * (routed if is_routed(name) else 1.0)
        for name, shape in expected_tensors(cfg, 0).items()
        if len(shape) == 2 and name not in (names.embedding, names.head)
    )
