"""Keys of GGUF files to config.json: the models' own published values, from what llama.cpp's converter makes
of them."""

from pathlib import Path

import pytest
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig

from nextn.checkpoint_error import CheckpointError
from nextn.families.config import ModelConfig
from nextn.gguf.architectures import architecture, deepseek2, glm4moe, llama, qwen2, qwen3
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import KeyValueUp, Rows
from nextn.gguf.types import TYPES


def meta(arch, keys, **more):
    values = {f"{arch}.{key}": value for key, value in keys.items()}
    return Metadata(Path("m.gguf"), {"general.architecture": arch, **values, **more})


def names(*found):
    """Tensors of these names, with shapes."""
    return {
        name: Tensor(name, TYPES[0], shape, 0, 0)
        for name, shape in (each if isinstance(each, tuple) else (each, (1, 1)) for each in found)
    }


F32 = {"rms": 9.999999974752427e-07, "tenth": 0.10000000149011612}
DEEPSEEK_V3 = {
    "block_count": 61, "context_length": 163840, "embedding_length": 7168, "feed_forward_length": 18432,
    "attention.head_count": 128, "attention.head_count_kv": 1, "rope.freq_base": 10000.0,
    "attention.layer_norm_rms_epsilon": F32["rms"], "expert_used_count": 8, "expert_group_count": 8,
    "expert_group_used_count": 4, "leading_dense_block_count": 3, "vocab_size": 129280,
    "attention.q_lora_rank": 1536, "attention.kv_lora_rank": 512, "attention.key_length": 576,
    "attention.value_length": 512, "attention.key_length_mla": 192, "attention.value_length_mla": 128,
    "expert_feed_forward_length": 2048, "expert_count": 256, "expert_shared_count": 1,
    "expert_weights_scale": 2.5, "expert_weights_norm": True, "expert_gating_func": 2,
    "rope.dimension_count": 64, "rope.scaling.type": "yarn", "rope.scaling.factor": 40.0,
    "rope.scaling.original_context_length": 4096, "rope.scaling.yarn_log_multiplier": F32["tenth"],
    "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0,
}  # fmt: skip
ENDS = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1}
PUBLISHED = {  # DeepSeek-V3's config.json
    "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 129280, "hidden_size": 7168,
    "num_hidden_layers": 61, "num_attention_heads": 128, "num_key_value_heads": 128,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "first_k_dense_replace": 3,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
    "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
    "routed_scaling_factor": 2.5, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840, "rope_theta": 10000,
    "rope_scaling": {
        "type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    },
    "rms_norm_eps": 1e-6, "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False,
}  # fmt: skip
BIAS = ("output.weight", "blk.3.exp_probs_b.bias")


def test_deepseek_v3():
    """Its converter leaves the NextN layer out, and keeps no key of it."""
    made = deepseek2.config(meta("deepseek2", DEEPSEEK_V3, **ENDS), names(*BIAS))
    assert ModelConfig.from_dict(made) == ModelConfig.from_dict({**PUBLISHED, "num_nextn_predict_layers": 0})


def test_deepseek_v3_before_groups_were_written():
    """Files of early 2025, with the keys of then: no groups, no MLA sizes, kv_b_proj whole."""
    left = ("expert_group", "key_length", "value_length")
    keys = {k: v for k, v in DEEPSEEK_V3.items() if not any(part in k for part in left)}
    keys |= {"attention.key_length": 192, "attention.value_length": 128, "attention.head_count_kv": 128}
    made = deepseek2.config(meta("deepseek2", keys, **ENDS), names(*BIAS))
    assert ModelConfig.from_dict(made) == ModelConfig.from_dict({**PUBLISHED, "num_nextn_predict_layers": 0})
    keys["expert_count"] = 384  # Kimi-K2, whose experts are one group
    made = deepseek2.config(meta("deepseek2", keys, **ENDS), names(*BIAS))
    assert (made["n_group"], made["topk_group"]) == (1, 1)


def test_glm_4_7_flash_has_its_nextn_layer():
    keys = {k: v for k, v in DEEPSEEK_V3.items() if "scaling" not in k and "gating" not in k}
    keys |= {
        "block_count": 48, "nextn_predict_layers": 1, "vocab_size": 154880, "embedding_length": 2048,
        "attention.head_count": 20, "expert_count": 64, "expert_used_count": 4, "expert_group_count": 1,
        "expert_group_used_count": 1, "expert_weights_scale": 1.7999999523162842,
        "rope.freq_base": 1000000.0, "attention.key_length_mla": 256, "attention.value_length_mla": 256,
    }  # fmt: skip
    cfg = ModelConfig.from_dict(deepseek2.config(meta("deepseek2", keys, **ENDS), names(*BIAS)))
    assert (cfg.num_hidden_layers, cfg.num_nextn_predict_layers) == (47, 1)
    assert (cfg.routed_scaling_factor, cfg.rope_theta, cfg.rope_scaling) == (1.8, 1e6, None)
    assert (cfg.qk_nope_head_dim, cfg.v_head_dim, cfg.n_group) == (192, 256, 1)


@pytest.mark.parametrize(
    ("changes", "tensors", "said"),
    [
        ({"expert_gating_func": 1}, BIAS, "scoring_func is 'softmax'"),
        ({"expert_gating_func": None}, BIAS, "scoring_func is 'softmax'"),
        ({"expert_gating_func": 4}, BIAS, "'deepseek2.expert_gating_func' is 4"),
        ({}, (), "topk_method is 'greedy'"),
        ({"rope.scaling.type": "linear"}, BIAS, "type is 'linear'"),
        ({"rope.scaling.attn_factor": 2.0}, BIAS, "attention_factor is 2.0"),
        ({"attention.temperature_scale": 0.1}, BIAS, "'deepseek2.attention.temperature_scale' is 0.1"),
        ({"nextn_predict_layers": 61}, BIAS, "'deepseek2.nextn_predict_layers' is 61"),
        ({"block_count": "61"}, BIAS, "'deepseek2.block_count' is '61'; it must be a whole number"),
        ({"embedding_length": -1}, BIAS, "'deepseek2.embedding_length' is -1"),
        ({"context_length": None}, BIAS, "'deepseek2.context_length' is missing"),
        ({"expert_weights_norm": 1}, BIAS, "'deepseek2.expert_weights_norm' is 1; it must be a bool"),
        ({"expert_weights_scale": "2"}, BIAS, "'deepseek2.expert_weights_scale' is '2'"),
        ({"expert_count": 1 << 40}, BIAS, "'deepseek2.expert_count' is"),
        ({"rope.dimension_count": 999}, BIAS, "'deepseek2.rope.dimension_count' is 999"),
        ({"feed_forward_length": [1, 2]}, BIAS, "it must be the same for all layers"),
    ],
)
def test_what_is_not_computed_is_refused(changes, tensors, said):
    keys = {k: v for k, v in {**DEEPSEEK_V3, **changes}.items() if v is not None}
    with pytest.raises(ValueError) as e:
        ModelConfig.from_dict(deepseek2.config(meta("deepseek2", keys, **ENDS), names(*tensors)), "m.gguf")
    assert said in str(e.value)
    assert str(e.value).startswith("m.gguf: ")


def test_deepseek2_names():
    found = deepseek2.tensors(
        meta("deepseek2", {"expert_count": 2, "attention.head_count": 4}),
        names(
            "token_embd.weight", "output_norm.weight", "blk.0.attn_q_a.weight", "blk.61.nextn.eh_proj.weight",
            ("blk.5.ffn_down_exps.weight", (2, 7, 3)), ("blk.5.ffn_gate_up_exps.weight", (2, 6, 7)),
            "blk.5.exp_probs_b.bias", "blk.5.ffn_gate_inp.weight", "blk.5.ffn_up_shexp.weight",
            "blk.7.attn_k_b.weight", "blk.7.attn_v_b.weight", "blk.8.attn_kv_b.weight",
            "blk.9.attn_v_b.weight",
            "blk.61.nextn.shared_head_norm.weight", "rope.what",
        ),
    )  # fmt: skip
    mlp = "model.layers.5.mlp."
    assert found == {
        "model.embed_tokens.weight": Rows("token_embd.weight", 0, 1),
        "model.norm.weight": Rows("output_norm.weight", 0, 1),
        "model.layers.0.self_attn.q_a_proj.weight": Rows("blk.0.attn_q_a.weight", 0, 1),
        "model.layers.61.eh_proj.weight": Rows("blk.61.nextn.eh_proj.weight", 0, 1),
        "model.layers.61.shared_head.norm.weight": Rows("blk.61.nextn.shared_head_norm.weight", 0, 1),
        mlp + "experts.0.down_proj.weight": Rows("blk.5.ffn_down_exps.weight", 0, 7),
        mlp + "experts.1.down_proj.weight": Rows("blk.5.ffn_down_exps.weight", 7, 7),
        mlp + "experts.0.gate_proj.weight": Rows("blk.5.ffn_gate_up_exps.weight", 0, 3),
        mlp + "experts.0.up_proj.weight": Rows("blk.5.ffn_gate_up_exps.weight", 3, 3),
        mlp + "experts.1.gate_proj.weight": Rows("blk.5.ffn_gate_up_exps.weight", 6, 3),
        mlp + "experts.1.up_proj.weight": Rows("blk.5.ffn_gate_up_exps.weight", 9, 3),
        mlp + "gate.weight": Rows("blk.5.ffn_gate_inp.weight", 0, 1),
        mlp + "gate.e_score_correction_bias": Rows("blk.5.exp_probs_b.bias", 0, 1),
        mlp + "shared_experts.up_proj.weight": Rows("blk.5.ffn_up_shexp.weight", 0, 1),
        "model.layers.7.self_attn.kv_b_proj.weight": KeyValueUp(
            "blk.7.attn_k_b.weight", "blk.7.attn_v_b.weight", 4
        ),
        "model.layers.8.self_attn.kv_b_proj.weight": Rows("blk.8.attn_kv_b.weight", 0, 1),
        "blk.9.attn_v_b.weight": Rows("blk.9.attn_v_b.weight", 0, 1),
        "rope.what": Rows("rope.what", 0, 1),
    }  # fmt: skip


def test_more_experts_than_any_model_has(monkeypatch):
    """A file of many layers and a large count makes no endless list."""
    found = meta("deepseek2", {"expert_count": 16000, "attention.head_count": 1})
    many = names(*(f"blk.{i}.ffn_up_exps.weight" for i in range(100)))
    with pytest.raises(ValueError, match="16000 experts in each layer make more than 1048576 matrices"):
        deepseek2.tensors(found, many)


GQA = {
    "block_count": 16, "context_length": 131072, "embedding_length": 2048, "feed_forward_length": 8192,
    "attention.head_count": 32, "attention.head_count_kv": 8, "rope.freq_base": 500000.0,
    "attention.layer_norm_rms_epsilon": 9.999999747378752e-06, "vocab_size": 128256,
    "rope.dimension_count": 64, "attention.key_length": 64, "attention.value_length": 64,
}  # fmt: skip


def test_llama_3_2_1b():
    """Its factors are a tensor in the file."""
    config = LlamaConfig(
        hidden_size=2048, num_attention_heads=32, head_dim=64, max_position_embeddings=131072
    )
    config.rope_parameters = {
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    }  # fmt: skip
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    plain = 500000.0 ** (-torch.arange(0, 64, 2).float() / 64)
    factors = (plain / scaled).tolist()  # what llama.cpp's converter writes
    tensors = names("token_embd.weight", "rope_freqs.weight")
    made = llama.config(meta("llama", GQA, **ENDS), tensors, lambda tensor: factors)
    want = {
        "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 2048,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "attention_bias": False, "mlp_bias": False,
    }  # fmt: skip
    assert {k: made[k] for k in want} == want
    assert made["rope_scaling"] == {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }  # fmt: skip
    with pytest.raises(CheckpointError, match=r"factors in tensor 'rope_freqs\.weight' are not Llama 3's"):
        llama.config(meta("llama", GQA, **ENDS), tensors, lambda tensor: [2.0 * f for f in factors])


def test_llama_names_and_what_it_is_not():
    found = llama.tensors(
        meta("llama", GQA),
        names("rope_freqs.weight", ("blk.0.attn_q.weight", (2048, 2048)),
              ("blk.0.attn_k.weight", (512, 2048)),
              ("blk.0.attn_v.weight", (512, 2048)), "blk.0.ffn_norm.weight"),
    )  # fmt: skip
    at = "model.layers.0."
    assert found == {
        at + "self_attn.q_proj.weight": Rows("blk.0.attn_q.weight", 0, 2048, 32),
        at + "self_attn.k_proj.weight": Rows("blk.0.attn_k.weight", 0, 512, 8),
        at + "self_attn.v_proj.weight": Rows("blk.0.attn_v.weight", 0, 512),
        at + "post_attention_layernorm.weight": Rows("blk.0.ffn_norm.weight", 0, 1),
    }
    with pytest.raises(CheckpointError, match=r"'llama\.expert_count' is 8; .*Mixtral"):
        llama.config(meta("llama", {**GQA, "expert_count": 8}), {}, list)
    with pytest.raises(CheckpointError, match=r"'llama\.rope\.dimension_count' is 32"):
        llama.config(meta("llama", {**GQA, "rope.dimension_count": 32}), {}, list)


def test_linear_scaling():
    """Older files have another key, and no type."""
    want = {"type": "linear", "factor": 4.0}
    for keys in (
        {"rope.scale_linear": 4.0},
        {"rope.scaling.factor": 4.0},
        {"rope.scaling.factor": 4.0, "rope.scaling.type": "linear"},
    ):
        assert qwen2.config(meta("qwen2", {**GQA, **keys}, **ENDS), [])["rope_scaling"] == want
    for keys in ({"rope.scale_linear": 1.0}, {"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}):
        assert qwen2.config(meta("qwen2", {**GQA, **keys}, **ENDS), [])["rope_scaling"] is None


def test_qwen2():
    made = qwen2.config(meta("qwen2", GQA, **ENDS), names("token_embd.weight"))
    assert made["architectures"] == ["Qwen2ForCausalLM"]
    assert (made["head_dim"], made["tie_word_embeddings"]) == (64, True)
    assert "attention_bias" not in made
    assert qwen2.tensors(meta("qwen2", GQA), names("blk.3.attn_k.bias")) == {
        "model.layers.3.self_attn.k_proj.bias": Rows("blk.3.attn_k.bias", 0, 1)
    }


def test_qwen3():
    keys = {**GQA, "attention.key_length": 128, "attention.value_length": 128}
    made = qwen3.config(meta("qwen3", keys, **ENDS), names("output.weight"))
    assert made["architectures"] == ["Qwen3ForCausalLM"]
    assert (made["head_dim"], made["num_key_value_heads"], made["tie_word_embeddings"]) == (128, 8, False)
    found = qwen3.tensors(meta("qwen3", keys), names("blk.0.attn_q.weight", "blk.0.attn_k_norm.weight"))
    assert found == {
        "model.layers.0.self_attn.q_proj.weight": Rows("blk.0.attn_q.weight", 0, 1),
        "model.layers.0.self_attn.k_norm.weight": Rows("blk.0.attn_k_norm.weight", 0, 1),
    }
    with pytest.raises(
        CheckpointError, match=r"'qwen3\.attention\.value_length' is 64; it must equal the width of keys, 128"
    ):
        qwen3.config(meta("qwen3", {**keys, "attention.value_length": 64}), {})


def test_glm_4_5_air():
    keys = {
        **GQA, "block_count": 47, "nextn_predict_layers": 1, "embedding_length": 4096,
        "attention.head_count": 96, "attention.key_length": 128, "attention.value_length": 128,
        "rope.dimension_count": 64, "expert_count": 128, "expert_used_count": 8, "expert_shared_count": 1,
        "expert_feed_forward_length": 1408, "leading_dense_block_count": 1, "expert_weights_scale": 1.0,
        "expert_weights_norm": True, "expert_gating_func": 2, "expert_group_count": 1,
        "expert_group_used_count": 1,
    }  # fmt: skip
    tensors = names("output.weight", "blk.1.exp_probs_b.bias", "blk.0.attn_q.bias", "blk.0.attn_q.weight")
    made = glm4moe.config(meta("glm4moe", keys, **ENDS), tensors)
    want = {
        "architectures": ["Glm4MoeForCausalLM"], "num_hidden_layers": 46, "num_nextn_predict_layers": 1,
        "head_dim": 128, "partial_rotary_factor": 0.5, "attention_bias": True, "use_qk_norm": False,
        "n_routed_experts": 128, "moe_intermediate_size": 1408, "first_k_dense_replace": 1,
        "routed_scaling_factor": 1.0, "norm_topk_prob": True, "n_group": 1,
    }  # fmt: skip
    assert {k: made[k] for k in want} == want
    found = glm4moe.tensors(
        meta("glm4moe", keys),
        names("blk.0.attn_q.bias", "blk.3.post_attention_norm.weight", "blk.46.nextn.enorm.weight"),
    )
    assert found.keys() == {
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.3.post_attention_layernorm.weight",
        "model.layers.46.enorm.weight",
    }


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (
            {"general.architecture": "gemma3"},
            "'general.architecture' is 'gemma3'; supported are deepseek2, llama",
        ),
        ({"general.architecture": "clip"}, "image projector"),
        ({"general.architecture": "llama", "general.type": "mmproj"}, "image projector"),
        ({"general.architecture": "llama", "general.type": "adapter"}, "a LoRA adapter is not a model"),
    ],
)
def test_files_of_other_kinds(keys, said):
    with pytest.raises(CheckpointError) as e:
        architecture(Metadata(Path("m.gguf"), keys))
    assert said in str(e.value)


def test_no_architecture():
    with pytest.raises(CheckpointError, match=r"m\.gguf: key 'general\.architecture' is missing"):
        Metadata(Path("m.gguf"), {})
