"""Names and shapes of every tensor of a checkpoint. Weights are [out, in]; the names are the family's.

NextN module k is layer num_hidden_layers + k: a decoder layer and four tensors of the module's own.
"""

from __future__ import annotations

import dataclasses
import math

from nextn.families.config import GqaAttention, ModelConfig
from nextn.ops.base import KV_BLOCK

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """The tensors of the target and its first `nextn_layers` NextN modules, all of which must be loaded."""
    assert 0 <= nextn_layers <= cfg.num_nextn_predict_layers, nextn_layers
    hidden, vocab, names = cfg.hidden_size, cfg.vocab_size, cfg.names
    found: Shapes = {names.embedding: (vocab, hidden)}
    for i in range(cfg.num_hidden_layers):
        found |= _under(names.at(i), _decoder_layer(cfg, i))
    found |= nextn_tensors(cfg, nextn_layers)
    found[names.norm] = (hidden,)
    if not cfg.tie_word_embeddings:
        found[names.head] = (vocab, hidden)
    return found


def size_of(cfg: ModelConfig, nextn_layers: int) -> tuple[int, int]:
    """(number of tensors, number of their values) in `expected_tensors`. Computed from one layer of each
    kind, so that it takes no time however many layers and experts a config names."""
    first = min(cfg.first_k_dense_replace, cfg.num_hidden_layers)
    moe = cfg.num_hidden_layers - first if cfg.n_routed_experts else 0
    dense = cfg.num_hidden_layers - moe
    if cfg.is_moe(cfg.num_hidden_layers):
        moe += nextn_layers
    else:
        dense += nextn_layers
    hidden, table = cfg.hidden_size, cfg.vocab_size * cfg.hidden_size
    tables = 1 if cfg.tie_word_embeddings else 2
    plain = _decoder_layer(dataclasses.replace(cfg, n_routed_experts=0), 0)
    tensors, values = tables + 1 + dense * len(plain), tables * table + hidden + dense * _values(plain)
    if moe:
        one = _decoder_layer(dataclasses.replace(cfg, n_routed_experts=1, first_k_dense_replace=0), 0)
        biases, others = int(cfg.names.router_bias != ""), cfg.n_routed_experts - 1
        expert = 3 * hidden * cfg.moe_intermediate_size + hidden + biases
        tensors += moe * (len(one) + 3 * others)
        values += moe * (_values(one) + expert * others)
    return tensors + 4 * nextn_layers, values + nextn_layers * (2 * hidden * hidden + 3 * hidden)


def layer_matrices(cfg: ModelConfig, nextn_layers: int) -> dict[int, list[str]]:
    """Decoder layer -> its matrices that are multiplied with whole rows. The router (f32) and kv_b_proj
    (multiplied per head) are not among them. NextN module k is layer num_hidden_layers + k."""
    names = cfg.names
    at = {i: names.at(i) for i in range(cfg.num_hidden_layers)}
    at |= {cfg.num_hidden_layers + k: cfg.module_at(k) for k in range(nextn_layers)}
    return {
        i: [
            prefix + name
            for name, shape in _decoder_layer(cfg, i).items()
            if len(shape) == 2 and name not in (names.router, names.kv_up)
        ]
        for i, prefix in at.items()
    }


def nextn_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """The part of `expected_tensors` that belongs to the NextN modules."""
    hidden, spec = cfg.hidden_size, cfg.mtp
    own: Shapes = {
        spec.embedding_norm: (hidden,),
        spec.hidden_norm: (hidden,),
        spec.projection: (hidden, 2 * hidden),
        spec.output_norm: (hidden,),
    }
    found: Shapes = {}
    for k in range(nextn_layers):
        found |= _under(cfg.module_at(k), own | _decoder_layer(cfg, cfg.num_hidden_layers + k))
    return found


def shared_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """Further tensors that a checkpoint may contain: copies of the target's embedding and head."""
    table, spec = (cfg.vocab_size, cfg.hidden_size), cfg.mtp
    found: Shapes = {cfg.names.head: table} if cfg.tie_word_embeddings else {}
    for k in range(nextn_layers):
        found |= _under(cfg.module_at(k), dict.fromkeys(spec.copies, table))
    return found


def nextn_prefixes(cfg: ModelConfig, first: int = 0) -> tuple[str, ...]:
    """Prefixes of the NextN modules from number `first` on. With them, the loader skips unused modules."""
    return tuple(map(cfg.module_at, range(first, cfg.num_nextn_predict_layers)))


def cut_prefixes(cfg: ModelConfig) -> tuple[str, ...]:
    """Prefixes of layers that the checkpoint has and the model does not."""
    return tuple(map(cfg.names.at, range(cfg.num_hidden_layers, cfg.num_hidden_layers + cfg.cut_layers)))


def target_prefixes(cfg: ModelConfig) -> tuple[str, ...]:
    """Prefixes of all tensors that belong to no NextN module."""
    names = cfg.names
    others = (name.removesuffix("weight") for name in (names.embedding, names.norm, names.head))
    return (*map(names.at, range(cfg.num_hidden_layers + cfg.cut_layers)), *others)


def product_shapes(cfg: ModelConfig) -> set[tuple[int, int]]:
    """(n_out, n_in) of every matrix product of the model as it is computed: gate and up projection are one
    product, all projections of the attention's input are one, absorbed attention has products per head."""
    hidden = cfg.hidden_size
    found = _gqa_products(cfg, cfg.gqa) if cfg.gqa is not None else _mla_products(cfg)
    found |= {
        (hidden, cfg.num_attention_heads * cfg.v_head_dim),
        (cfg.vocab_size, hidden),
        (hidden, 2 * hidden),
        (2 * cfg.intermediate_size, hidden),
        (hidden, cfg.intermediate_size),
    }
    if cfg.n_routed_experts:
        inner = cfg.moe_intermediate_size
        found |= {(cfg.n_routed_experts, hidden), (2 * inner, hidden), (hidden, inner)}
        if cfg.n_shared_experts:
            shared = inner * cfg.n_shared_experts
            found |= {(2 * shared, hidden), (hidden, shared)}
    return found


def _mla_products(cfg: ModelConfig) -> set[tuple[int, int]]:
    queries, rank = cfg.num_attention_heads * cfg.qk_head_dim, cfg.kv_lora_rank
    return {
        ((cfg.q_lora_rank or queries) + cfg.latent_dim, cfg.hidden_size),
        (queries, cfg.q_lora_rank or queries),
        (rank, cfg.qk_nope_head_dim),
        (cfg.v_head_dim, rank),
        (KV_BLOCK, cfg.latent_dim),
        (rank, KV_BLOCK),
    }


def _gqa_products(cfg: ModelConfig, gqa: GqaAttention) -> set[tuple[int, int]]:
    width = gqa.head_dim
    return {
        ((cfg.num_attention_heads + 2 * gqa.num_key_value_heads) * width, cfg.hidden_size),
        (KV_BLOCK, width),
        (width, KV_BLOCK),
    }


def _under(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def _values(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _decoder_layer(cfg: ModelConfig, index: int) -> Shapes:
    hidden, names = cfg.hidden_size, cfg.names
    found: Shapes = {names.attention_norm: (hidden,), **_attention(cfg), names.mlp_norm: (hidden,)}
    if not cfg.is_moe(index):
        return found | _mlp(cfg, names.mlp, cfg.intermediate_size)
    found[names.router] = (cfg.n_routed_experts, hidden)
    if names.router_bias:
        found[names.router_bias] = (cfg.n_routed_experts,)
    for e in range(cfg.n_routed_experts):
        found |= _mlp(cfg, names.expert_at(e), cfg.moe_intermediate_size)
    if cfg.n_shared_experts:
        found |= _mlp(cfg, names.shared_experts, cfg.n_shared_experts * cfg.moe_intermediate_size)
    return found


def _attention(cfg: ModelConfig) -> Shapes:
    return _mla(cfg) if cfg.gqa is None else _gqa(cfg, cfg.gqa)


def _gqa(cfg: ModelConfig, gqa: GqaAttention) -> Shapes:
    hidden, names = cfg.hidden_size, cfg.names
    queries, keys = cfg.num_attention_heads * gqa.head_dim, gqa.num_key_value_heads * gqa.head_dim
    found: Shapes = {
        names.q_proj: (queries, hidden),
        names.k_proj: (keys, hidden),
        names.v_proj: (keys, hidden),
        names.out: (hidden, queries),
    }
    if gqa.qkv_bias:
        found |= {names.q_bias: (queries,), names.k_bias: (keys,), names.v_bias: (keys,)}
    if gqa.qk_norm:
        found |= {names.q_norm: (gqa.head_dim,), names.k_norm: (gqa.head_dim,)}
    if gqa.out_bias:
        found[names.out_bias] = (hidden,)
    return found


def _mla(cfg: ModelConfig) -> Shapes:
    heads, hidden, rank, names = cfg.num_attention_heads, cfg.hidden_size, cfg.kv_lora_rank, cfg.names
    found: Shapes = {}
    if cfg.q_lora_rank is None:
        found[names.q_proj] = (heads * cfg.qk_head_dim, hidden)
    else:
        found[names.q_down] = (cfg.q_lora_rank, hidden)
        found[names.q_norm] = (cfg.q_lora_rank,)
        found[names.q_up] = (heads * cfg.qk_head_dim, cfg.q_lora_rank)
    found[names.kv_down] = (cfg.latent_dim, hidden)
    found[names.kv_norm] = (rank,)
    found[names.kv_up] = (heads * (cfg.qk_nope_head_dim + cfg.v_head_dim), rank)
    found[names.out] = (hidden, heads * cfg.v_head_dim)
    return found


def _mlp(cfg: ModelConfig, prefix: str, inner: int) -> Shapes:
    hidden, names = cfg.hidden_size, cfg.names
    up, down = (inner, hidden), (hidden, inner)
    return _under(prefix, {names.gate: up, names.up: up, names.down: down})
