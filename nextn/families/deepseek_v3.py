"""DeepSeek-V3 and models with its architecture's name (R1, V3.1, GigaChat3): MLA, experts chosen by groups,
and NextN modules after the last layer.

Keys of config.json have DeepSeek's names. Absent keys have the defaults of transformers' DeepseekV3Config,
except sizes, which are required, and n_routed_experts and num_nextn_predict_layers, which are 0. Values that
nextn does not support raise ValueError.
"""

from __future__ import annotations

from nextn.families.config import ModelConfig
from nextn.families.fields import Fields
from nextn.families.mtp import MTPSpec
from nextn.families.names import TensorNames
from nextn.families.parts import basics, experts, rope

NAMES = TensorNames(
    embedding="model.embed_tokens.weight",
    norm="model.norm.weight",
    head="lm_head.weight",
    layer="model.layers.{layer}.",
    attention_norm="input_layernorm.weight",
    q_proj="self_attn.q_proj.weight",
    q_down="self_attn.q_a_proj.weight",
    q_norm="self_attn.q_a_layernorm.weight",
    q_up="self_attn.q_b_proj.weight",
    kv_down="self_attn.kv_a_proj_with_mqa.weight",
    kv_norm="self_attn.kv_a_layernorm.weight",
    kv_up="self_attn.kv_b_proj.weight",
    out="self_attn.o_proj.weight",
    mlp_norm="post_attention_layernorm.weight",
    mlp="mlp.",
    router="mlp.gate.weight",
    router_bias="mlp.gate.e_score_correction_bias",
    expert="mlp.experts.{expert}.",
    shared_experts="mlp.shared_experts.",
    gate="gate_proj.weight",
    up="up_proj.weight",
    down="down_proj.weight",
)

MTP = MTPSpec(
    prefix="model.layers.{layer}.",
    counted_on=True,
    embedding_norm="enorm.weight",
    hidden_norm="hnorm.weight",
    projection="eh_proj.weight",
    output_norm="shared_head.norm.weight",
    embedding_copy="embed_tokens.weight",
    head_copy="shared_head.head.weight",
    embedding_first=True,
    masks_first=False,
    dense=False,
    exported=("DeepseekV3ForCausalLMNextN", "DeepseekMTPForCausalLM"),  # SGLang's and xLLM's
    own_prefix="model.",
)


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """f: config.json. generation: generation_config.json, for its end tokens. name: of the architecture."""
    common = basics(name, f, generation, positions=4096, bos=0, eos=1)
    f.only("attention_bias", False)
    f.only("rope_interleave", True)
    f.only("num_key_value_heads", common["num_attention_heads"], None)
    f.only("partial_rotary_factor", None, 1)
    for key in ("rope_scaling", "rope_parameters"):
        if (table := f.table(key)) is not None:
            table.only("partial_rotary_factor", None, 1)
    theta, scaling = rope(f, "yarn")
    rope_dim = f.integer("qk_rope_head_dim")
    if rope_dim % 2:
        raise f.error("qk_rope_head_dim", "it must be even")
    layers = common["num_hidden_layers"]
    return ModelConfig(
        **common,
        **experts(f, layers, dense_layers=3, groups=8, top_groups=4, scale=2.5),
        q_lora_rank=None if f.get("q_lora_rank") is None else f.integer("q_lora_rank"),
        kv_lora_rank=f.integer("kv_lora_rank"),
        qk_nope_head_dim=f.integer("qk_nope_head_dim"),
        qk_rope_head_dim=rope_dim,
        v_head_dim=f.integer("v_head_dim"),
        rope_theta=theta,
        rope_scaling=scaling,
    )
