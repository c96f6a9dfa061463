"""Sizes and operations of a layer's attention: latent attention (MLA) or grouped queries (GQA). Pure
functions."""

from __future__ import annotations

from typing import NamedTuple

from nextn.families.config import ModelConfig


class AttentionCost(NamedTuple):
    """products: multiply-adds of a row with the layer's weights, and also the weights' number of elements: a
    row uses each element once. vectors: elements of norms and biases. entry: elements of a position in the
    cache. pair: multiply-adds for each (query, key) pair, over all heads. ups: how many matrices of the
    native layer's key_up, and of its value_up, a row is multiplied with. With grouped queries this is one,
    and these weights exist only if keys and values have their own formats."""

    products: int
    vectors: int
    entry: int
    pair: int
    ups: int


def attention_cost(cfg: ModelConfig) -> AttentionCost:
    return _latent(cfg) if cfg.gqa is None else _grouped(cfg)


def _latent(cfg: ModelConfig) -> AttentionCost:
    hidden, heads, rank = cfg.hidden_size, cfg.num_attention_heads, cfg.kv_lora_rank
    queries, value = heads * cfg.qk_head_dim, cfg.v_head_dim
    products = hidden * ((cfg.q_lora_rank or queries) + cfg.latent_dim) + queries * (cfg.q_lora_rank or 0)
    products += heads * rank * (cfg.qk_nope_head_dim + value) + hidden * heads * value
    return AttentionCost(
        products, rank + (cfg.q_lora_rank or 0), cfg.latent_dim, heads * (cfg.latent_dim + rank), heads
    )


def _grouped(cfg: ModelConfig) -> AttentionCost:
    gqa = cfg.gqa
    assert gqa is not None
    width, queries = gqa.head_dim, cfg.num_attention_heads * gqa.head_dim
    together = queries + 2 * gqa.num_key_value_heads * width
    vectors = together * gqa.qkv_bias + 2 * width * gqa.qk_norm + cfg.hidden_size * gqa.out_bias
    return AttentionCost(
        cfg.hidden_size * (together + queries), vectors, 2 * gqa.num_key_value_heads * width, 2 * queries, 1
    )
