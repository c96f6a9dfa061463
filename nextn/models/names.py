"""Every tensor of a DeepSeek-V3 checkpoint by name and shape. Weights are [out, in].

NextN module k is layer num_hidden_layers + k: a decoder layer with four tensors of its own besides.
"""

from __future__ import annotations

import dataclasses
import math

from nextn.families.config import ModelConfig
from nextn.ops.base import KV_BLOCK

Shapes = dict[str, tuple[int, ...]]


def expected_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """What must be loaded for the target and its first `nextn_layers` NextN modules."""
    assert 0 <= nextn_layers <= cfg.num_nextn_predict_layers, nextn_layers
    hidden, vocab = cfg.hidden_size, cfg.vocab_size
    found: Shapes = {"model.embed_tokens.weight": (vocab, hidden)}
    for i in range(cfg.num_hidden_layers):
        found |= _under(f"model.layers.{i}.", _decoder_layer(cfg, i))
    found |= nextn_tensors(cfg, nextn_layers)
    found["model.norm.weight"] = (hidden,)
    if not cfg.tie_word_embeddings:
        found["lm_head.weight"] = (vocab, hidden)
    return found


def size_of(cfg: ModelConfig, nextn_layers: int) -> tuple[int, int]:
    """(tensors, their values) of `expected_tensors`, from one layer of each kind: layers and experts may be
    as many as a config says."""
    first = min(cfg.first_k_dense_replace, cfg.num_hidden_layers)
    moe = cfg.num_hidden_layers - first if cfg.n_routed_experts else 0
    dense = cfg.num_hidden_layers - moe
    if cfg.n_routed_experts:
        moe += nextn_layers
    else:
        dense += nextn_layers
    hidden, table = cfg.hidden_size, cfg.vocab_size * cfg.hidden_size
    tables = 1 if cfg.tie_word_embeddings else 2
    plain = _decoder_layer(dataclasses.replace(cfg, n_routed_experts=0), 0)
    tensors, values = tables + 1 + dense * len(plain), tables * table + hidden + dense * _values(plain)
    if moe:
        one = _decoder_layer(dataclasses.replace(cfg, n_routed_experts=1, first_k_dense_replace=0), 0)
        expert, others = 3 * hidden * cfg.moe_intermediate_size + hidden + 1, cfg.n_routed_experts - 1
        tensors += moe * (len(one) + 3 * others)
        values += moe * (_values(one) + expert * others)
    return tensors + 4 * nextn_layers, values + nextn_layers * (2 * hidden * hidden + 3 * hidden)


def nextn_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """The part of `expected_tensors` that belongs to the NextN modules."""
    hidden = cfg.hidden_size
    found: Shapes = {}
    for i in range(cfg.num_hidden_layers, cfg.num_hidden_layers + nextn_layers):
        spec = cfg.mtp
        found[spec.weight(i, spec.embedding_norm)] = (hidden,)
        found[spec.weight(i, spec.hidden_norm)] = (hidden,)
        found[spec.weight(i, spec.projection)] = (hidden, 2 * hidden)
        found[spec.weight(i, spec.output_norm)] = (hidden,)
        found |= _under(spec.prefix.format(layer=i), _decoder_layer(cfg, i))
    return found


def shared_tensors(cfg: ModelConfig, nextn_layers: int) -> Shapes:
    """Names that a checkpoint may hold besides: copies of the target's embedding and head."""
    table = (cfg.vocab_size, cfg.hidden_size)
    found: Shapes = {"lm_head.weight": table} if cfg.tie_word_embeddings else {}
    for i in range(cfg.num_hidden_layers, cfg.num_hidden_layers + nextn_layers):
        found |= {cfg.mtp.weight(i, name): table for name in cfg.mtp.copies}
    return found


def nextn_prefixes(cfg: ModelConfig, first: int = 0) -> tuple[str, ...]:
    """Prefixes of the NextN modules from number `first` on; those that are not loaded are skipped by them."""
    return tuple(
        cfg.mtp.prefix.format(layer=cfg.num_hidden_layers + k)
        for k in range(first, cfg.num_nextn_predict_layers)
    )


def target_prefixes(cfg: ModelConfig) -> tuple[str, ...]:
    """Prefixes of what belongs to no NextN module."""
    layers = (f"model.layers.{i}." for i in range(cfg.num_hidden_layers))
    return (*layers, "model.embed_tokens.", "model.norm.", "lm_head.")


def product_shapes(cfg: ModelConfig) -> set[tuple[int, int]]:
    """(n_out, n_in) of every matrix product of the model as it is computed: gate and up projection
    as one, the two that read the attention's input as one, and those of absorbed attention per head."""
    hidden, heads, rank = cfg.hidden_size, cfg.num_attention_heads, cfg.kv_lora_rank
    queries = heads * cfg.qk_head_dim
    found = {
        ((cfg.q_lora_rank or queries) + cfg.latent_dim, hidden),
        (queries, cfg.q_lora_rank or queries),
        (hidden, heads * cfg.v_head_dim),
        (rank, cfg.qk_nope_head_dim),
        (cfg.v_head_dim, rank),
        (KV_BLOCK, cfg.latent_dim),
        (rank, KV_BLOCK),
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


def _under(prefix: str, shapes: Shapes) -> Shapes:
    return {prefix + name: shape for name, shape in shapes.items()}


def _values(shapes: Shapes) -> int:
    return sum(map(math.prod, shapes.values()))


def _decoder_layer(cfg: ModelConfig, index: int) -> Shapes:
    hidden = cfg.hidden_size
    found: Shapes = {"input_layernorm.weight": (hidden,)}
    found |= {f"self_attn.{name}.weight": shape for name, shape in _attention(cfg).items()}
    found["post_attention_layernorm.weight"] = (hidden,)
    if not cfg.is_moe(index):
        return found | _mlp("mlp.", hidden, cfg.intermediate_size)
    found["mlp.gate.weight"] = (cfg.n_routed_experts, hidden)
    found["mlp.gate.e_score_correction_bias"] = (cfg.n_routed_experts,)
    for e in range(cfg.n_routed_experts):
        found |= _mlp(f"mlp.experts.{e}.", hidden, cfg.moe_intermediate_size)
    if cfg.n_shared_experts:
        found |= _mlp("mlp.shared_experts.", hidden, cfg.n_shared_experts * cfg.moe_intermediate_size)
    return found


def _attention(cfg: ModelConfig) -> Shapes:
    heads, hidden, rank = cfg.num_attention_heads, cfg.hidden_size, cfg.kv_lora_rank
    found: Shapes = {}
    if cfg.q_lora_rank is None:
        found["q_proj"] = (heads * cfg.qk_head_dim, hidden)
    else:
        found["q_a_proj"] = (cfg.q_lora_rank, hidden)
        found["q_a_layernorm"] = (cfg.q_lora_rank,)
        found["q_b_proj"] = (heads * cfg.qk_head_dim, cfg.q_lora_rank)
    found["kv_a_proj_with_mqa"] = (cfg.latent_dim, hidden)
    found["kv_a_layernorm"] = (rank,)
    found["kv_b_proj"] = (heads * (cfg.qk_nope_head_dim + cfg.v_head_dim), rank)
    found["o_proj"] = (hidden, heads * cfg.v_head_dim)
    return found


def _mlp(prefix: str, hidden: int, inner: int) -> Shapes:
    return {
        f"{prefix}gate_proj.weight": (inner, hidden),
        f"{prefix}up_proj.weight": (inner, hidden),
        f"{prefix}down_proj.weight": (hidden, inner),
    }
