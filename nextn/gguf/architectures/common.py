"""Functions and names that architectures of GGUF files share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from nextn.gguf.metadata import Metadata

MOST_EXPERTS = 1 << 14
TOKENS = "tokenizer.ggml.tokens"
OUTPUT = "output.weight"

# Keys that change the computation -> the value with which they do not.
UNSUPPORTED: dict[str, Any] = {
    ".attention.scale": 0,
    ".attention.temperature_scale": 0,
    ".attention.clamp_kqv": 0,
    ".attention.max_alibi_bias": 0,
    ".attention.sliding_window": 0,
    ".attention.causal": True,
    ".attention.indexer.head_count": 0,
    ".attn_logit_softcapping": 0,
    ".final_logit_softcapping": 0,
    ".router_logit_softcapping": 0,
    ".logit_scale": 0,
    ".residual_scale": 0,
    ".embedding_scale": 0,
    ".use_parallel_residual": False,
    ".expert_group_scale": 0,
    ".rope.dimension_sections": [0, 0, 0, 0],
}


def sizes(meta: Metadata, tensors: Collection[str]) -> dict[str, Any]:
    """The fields that every config.json has. NextN layers are the last blocks of a file. Raises
    CheckpointError for a key in UNSUPPORTED."""
    meta.refuse(UNSUPPORTED)
    blocks, nextn = meta.integer(".block_count"), meta.integer(".nextn_predict_layers", 0)
    if nextn >= blocks:
        raise meta.error(
            ".nextn_predict_layers", f"it must be less than the model's number of blocks, {blocks}"
        )
    tokens = meta.array(TOKENS, str, [])
    found = {
        "vocab_size": meta.integer(".vocab_size", len(tokens)),
        "hidden_size": meta.integer(".embedding_length"),
        "num_hidden_layers": blocks - nextn,
        "num_nextn_predict_layers": nextn,
        "num_attention_heads": heads(meta),
        "intermediate_size": feed_forward(meta),
        "max_position_embeddings": meta.integer(".context_length"),
        "rope_theta": meta.number(".rope.freq_base", 10000.0),
        "rms_norm_eps": meta.number(".attention.layer_norm_rms_epsilon"),
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": OUTPUT not in tensors,
        "torch_dtype": "bfloat16",
    }
    for name in ("bos_token_id", "eos_token_id"):
        found[name] = meta.integer("tokenizer.ggml." + name, None)
    return found


def heads(meta: Metadata) -> int:
    return alike(meta, ".attention.head_count")


def key_value_heads(meta: Metadata) -> int:
    return alike(meta, ".attention.head_count_kv") if ".attention.head_count_kv" in meta else heads(meta)


def feed_forward(meta: Metadata) -> int:
    return alike(meta, ".feed_forward_length")


def alike(meta: Metadata, key: str) -> int:
    """A number that llama.cpp also accepts as an array with one number per layer. Raises CheckpointError if
    the numbers of an array differ."""
    value = meta.values.get(meta.arch + key)
    if isinstance(value, list):
        if not value or len(set(value)) > 1 or type(value[0]) is not int or value[0] < 0:
            raise meta.error(key, "it must be the same for all layers")
        return int(value[0])
    return int(meta.integer(key))


def head_dim(meta: Metadata) -> int:
    """The width of a head's keys and values. Raises CheckpointError if they differ."""
    count = heads(meta)
    if not count:
        raise meta.error(".attention.head_count", "it must be 1 or more")
    dim = meta.integer(".attention.key_length", meta.integer(".embedding_length") // count)
    if meta.integer(".attention.value_length", dim) != dim:
        raise meta.error(".attention.value_length", f"it must equal the width of keys, {dim}")
    return int(dim)


def experts(meta: Metadata) -> int:
    count = int(meta.integer(".expert_count", 0))
    if count > MOST_EXPERTS:
        raise meta.error(".expert_count", f"at most {MOST_EXPERTS} are supported")
    return count


def gating(meta: Metadata, default: str) -> str:
    """The function with which routers score experts: "softmax" or "sigmoid"."""
    number = meta.integer(".expert_gating_func", 0)
    found = {0: default, 1: "softmax", 2: "sigmoid"}.get(number)
    if found is None:
        raise meta.error(".expert_gating_func", "supported are 1 (softmax) and 2 (sigmoid)")
    return found


def moe(meta: Metadata, tensors: Collection[str], scoring: str) -> dict[str, Any]:
    """The fields of config.json about experts, with DeepSeek's names, which GLM uses too. scoring: the
    default if the file does not say how routers score experts."""
    if not experts(meta):
        return {"n_routed_experts": 0}
    bias = any(name.endswith(".exp_probs_b.bias") for name in tensors)
    return {
        "moe_intermediate_size": meta.integer(".expert_feed_forward_length"),
        "first_k_dense_replace": meta.integer(".leading_dense_block_count", 0),
        "moe_layer_freq": 1,
        "n_routed_experts": experts(meta),
        "n_shared_experts": meta.integer(".expert_shared_count", 0),
        "num_experts_per_tok": meta.integer(".expert_used_count"),
        "n_group": meta.integer(".expert_group_count", 1),
        "topk_group": meta.integer(".expert_group_used_count", 1),
        "norm_topk_prob": meta.boolean(".expert_weights_norm", False),
        "routed_scaling_factor": meta.number(".expert_weights_scale", 0.0) or 1.0,
        "scoring_func": gating(meta, scoring),
        "topk_method": "noaux_tc" if bias else "greedy",
    }


def rope_scaling(meta: Metadata) -> dict[str, Any] | None:
    """`rope_scaling` of config.json, for every kind except llama3, which has no key. If nextn does not
    support the kind, `nextn.families` raises an error with its name."""
    # Older files have the second key and no type. The type is linear then, as in llama.cpp.
    factor = meta.number(".rope.scaling.factor", meta.number(".rope.scale_linear", 0.0))
    kind = meta.string(".rope.scaling.type", "linear" if factor not in (0.0, 1.0) else "none")
    if kind == "none":
        return None
    found: dict[str, Any] = {"type": kind, "factor": factor or 1.0}
    if kind == "yarn":
        found["original_max_position_embeddings"] = meta.integer(".rope.scaling.original_context_length")
        found["beta_fast"] = meta.number(".rope.scaling.yarn_beta_fast", 32.0)
        found["beta_slow"] = meta.number(".rope.scaling.yarn_beta_slow", 1.0)
    factors = {".rope.scaling.attn_factor", ".rope.scaling.yarn_attn_factor"}
    for key in sorted(factors):
        if key in meta and meta.number(key) != 1.0:
            found["attention_factor"] = meta.number(key)
    return found


# Names in the file -> names in a checkpoint with Llama's layout.
WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    OUTPUT: "lm_head.weight",
}
NORMS = {
    "blk.{layer}.attn_norm.weight": "model.layers.{layer}.input_layernorm.weight",
    "blk.{layer}.ffn_norm.weight": "model.layers.{layer}.post_attention_layernorm.weight",
}
ATTENTION = {
    f"blk.{{layer}}.attn_{short}.{kind}": f"model.layers.{{layer}}.self_attn.{long}.{kind}"
    for short, long in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "o_proj"}.items()
    for kind in ("weight", "bias")
}
HEAD_NORMS = {
    "blk.{layer}.attn_q_norm.weight": "model.layers.{layer}.self_attn.q_norm.weight",
    "blk.{layer}.attn_k_norm.weight": "model.layers.{layer}.self_attn.k_norm.weight",
}
MLP = {
    f"blk.{{layer}}.ffn_{side}.weight": f"model.layers.{{layer}}.mlp.{side}_proj.weight"
    for side in ("gate", "up", "down")
}
_MLP = "model.layers.{layer}.mlp."
EXPERTS: Mapping[str, str] = {
    "blk.{layer}.ffn_gate_inp.weight": _MLP + "gate.weight",
    "blk.{layer}.exp_probs_b.bias": _MLP + "gate.e_score_correction_bias",
    **{
        f"blk.{{layer}}.ffn_{side}_exps.weight": f"{_MLP}experts.{{expert}}.{side}_proj.weight"
        for side in ("gate", "up", "down")
    },
    "blk.{layer}.ffn_gate_up_exps.weight": "|".join(
        f"{_MLP}experts.{{expert}}.{side}_proj.weight" for side in ("gate", "up")
    ),
    **{
        f"blk.{{layer}}.ffn_{side}_shexp.weight": f"{_MLP}shared_experts.{side}_proj.weight"
        for side in ("gate", "up", "down")
    },
}
NEXTN = {
    "blk.{layer}.nextn.eh_proj.weight": "model.layers.{layer}.eh_proj.weight",
    "blk.{layer}.nextn.enorm.weight": "model.layers.{layer}.enorm.weight",
    "blk.{layer}.nextn.hnorm.weight": "model.layers.{layer}.hnorm.weight",
    "blk.{layer}.nextn.shared_head_norm.weight": "model.layers.{layer}.shared_head.norm.weight",
    # Copies of the model's embedding and head. They are not loaded.
    "blk.{layer}.nextn.embed_tokens.weight": "model.layers.{layer}.embed_tokens.weight",
    "blk.{layer}.nextn.shared_head_head.weight": "model.layers.{layer}.shared_head.head.weight",
}
COPIES = (".nextn.embed_tokens.weight", ".nextn.shared_head_head.weight")
