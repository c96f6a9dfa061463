"""config.json files as they are published, but for keys that no engine reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.native_kernels import built_levels

from nextn.config import EngineConfig
from nextn.engine.engine import Engine
from nextn.families.config import ModelConfig, YarnScaling
from nextn.models.names import expected_tensors, size_of
from nextn.request import Request, SamplingParams

# Common to all: DeepSeek's own keys, of which nextn serves one value.
DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
    "ep_size": 1, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "hidden_act": "silu",
    "first_k_dense_replace": 1, "initializer_range": 0.02, "kv_lora_rank": 512, "moe_layer_freq": 1,
    "n_group": 1, "norm_topk_prob": True, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "scoring_func": "sigmoid", "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16", "use_cache": True, "v_head_dim": 128,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "GLM-4.7-Flash": {
        "architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "first_k_dense_replace": 1,
        "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 10240, "kv_lora_rank": 512,
        "max_position_embeddings": 202752, "model_type": "glm4_moe_lite", "moe_intermediate_size": 1536,
        "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 1, "norm_topk_prob": True,
        "num_attention_heads": 20, "num_experts_per_tok": 4, "num_hidden_layers": 47,
        "num_key_value_heads": 20, "num_nextn_predict_layers": 1, "pad_token_id": 154820,
        "partial_rotary_factor": 1.0, "q_lora_rank": 768, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64,
        "rms_norm_eps": 1e-05, "rope_scaling": None, "rope_theta": 1000000, "routed_scaling_factor": 1.8,
        "tie_word_embeddings": False, "topk_group": 1, "topk_method": "noaux_tc", "v_head_dim": 256,
        "vocab_size": 154880,
    },
    "JoyAI-LLM-Flash": {
        **DEEPSEEK, "bos_token_id": 0, "eos_token_id": 1, "hidden_size": 2048, "intermediate_size": 7168,
        "max_position_embeddings": 131072, "model_type": "joyai_llm_flash", "moe_intermediate_size": 768,
        "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 8,
        "num_hidden_layers": 40, "num_key_value_heads": 32, "num_nextn_predict_layers": 1,
        "q_lora_rank": 1536, "rms_norm_eps": 1e-06, "rope_theta": 32000000, "routed_scaling_factor": 2.5,
        "vocab_size": 129280,
    },
    "Moonlight-16B-A3B": {
        **DEEPSEEK, "aux_loss_alpha": 0.001, "bos_token_id": 163584, "eos_token_id": 163586,
        "hidden_size": 2048, "intermediate_size": 11264, "max_position_embeddings": 8192,
        "model_type": "deepseek_v3", "moe_intermediate_size": 1408, "n_routed_experts": 64,
        "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 27,
        "num_key_value_heads": 16, "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": None,
        "rms_norm_eps": 1e-05, "rope_theta": 50000.0, "routed_scaling_factor": 2.446, "seq_aux": True,
        "vocab_size": 163840,
    },
    "DeepSeek-V2-Lite": {
        **DEEPSEEK, "architectures": ["DeepseekV2ForCausalLM"], "aux_loss_alpha": 0.001,
        "bos_token_id": 100000, "eos_token_id": 100001, "hidden_size": 2048, "intermediate_size": 10944,
        "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
        "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "pretraining_tp": 1,
        "q_lora_rank": None, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 1.0,
        "scoring_func": "softmax", "seq_aux": True, "topk_method": "greedy", "vocab_size": 102400,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
    },
    "Kimi-K2": {
        **DEEPSEEK, "aux_loss_alpha": 0.001, "bos_token_id": 163584, "eos_token_id": 163585,
        "hidden_size": 7168, "intermediate_size": 18432, "max_position_embeddings": 131072,
        "model_type": "kimi_k2", "moe_intermediate_size": 2048, "n_routed_experts": 384,
        "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 61,
        "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "pretraining_tp": 1, "q_lora_rank": 1536,
        "rms_norm_eps": 1e-06, "rope_theta": 50000.0, "routed_scaling_factor": 2.827, "seq_aux": True,
        "vocab_size": 163840,
        "rope_scaling": {
            "beta_fast": 1.0, "beta_slow": 1.0, "factor": 32.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
    },
    # From what other programs print of its files. The width of the one dense layer and rotary settings were
    # not found; those here are V3's or of a like size.
    "GigaChat3.1-10B-A1.8B": {
        **DEEPSEEK, "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 1536, "intermediate_size": 8960,
        "max_position_embeddings": 262144, "model_type": "deepseek_v3", "moe_intermediate_size": 1280,
        "n_routed_experts": 64, "n_shared_experts": 1, "num_attention_heads": 32, "num_experts_per_tok": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 32, "num_nextn_predict_layers": 1,
        "q_lora_rank": None, "rms_norm_eps": 1e-06, "rope_theta": 100000, "routed_scaling_factor": 1.0,
        "v_head_dim": 192, "vocab_size": 128256,
    },
}  # fmt: skip
SIZES = {  # 1e9 weights
    "GLM-4.7-Flash": 30, "JoyAI-LLM-Flash": 48, "Moonlight-16B-A3B": 16, "DeepSeek-V2-Lite": 15.7,
    "Kimi-K2": 1026, "GigaChat3.1-10B-A1.8B": 10.6,
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes(name: str) -> None:
    """What the model card says."""
    cfg = ModelConfig.from_dict(PUBLISHED[name])
    assert size_of(cfg, 0)[1] / 1e9 == pytest.approx(SIZES[name], rel=0.03)


def test_glm_4_7_flash() -> None:
    cfg = ModelConfig.from_dict(PUBLISHED["GLM-4.7-Flash"])
    assert (cfg.architecture, cfg.latent_dim, cfg.rope_theta) == ("Glm4MoeLiteForCausalLM", 576, 1e6)
    assert (cfg.n_group, cfg.topk_group, cfg.rope_scaling) == (1, 1, None)
    assert cfg.eos_token_ids == (154820, 154827, 154829)
    assert (cfg.mtp.masks_first, cfg.mtp.dense, cfg.mtp.embedding_first) == (True, False, True)
    module = {n for n in expected_tensors(cfg, 1) if n.startswith("model.layers.47.")}
    assert {"model.layers.47.eh_proj.weight", "model.layers.47.mlp.experts.63.up_proj.weight"} <= module


def test_joyai_llm_flash() -> None:
    cfg = ModelConfig.from_dict(PUBLISHED["JoyAI-LLM-Flash"])
    assert (cfg.architecture, cfg.rope_theta) == ("JoyAILLMFlashForCausalLM", 3.2e7)
    assert (cfg.mtp.masks_first, cfg.mtp.dense) == (False, True)
    module = {n: s for n, s in expected_tensors(cfg, 1).items() if n.startswith("model.layers.40.")}
    assert module["model.layers.40.mlp.gate_proj.weight"] == (7168, 2048)
    assert not any("experts" in name for name in module)


def test_deepseek_v2_lite_with_n_grams(tmp_path: Path) -> None:
    """It has no MTP layer: n-grams draft, and the text is that without drafts."""
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED["DeepSeek-V2-Lite"], **SMALL}))
    texts: list[list[int]] = []
    for options in ({"speculative_algorithm": "NGRAM"}, {"speculative_num_steps": 0}):
        engine = Engine(
            EngineConfig(str(tmp_path), load_format="dummy", kv_cache_tokens=512, threads=1, **options)  # type: ignore[arg-type]
        )
        prompt = [3, 4, 5, 6] * 8
        engine.add(Request("a", prompt, SamplingParams(max_tokens=40, temperature=0.0, ignore_eos=True)))
        texts.append([])
        while engine.has_work():
            texts[-1] += [token for out in engine.step() for token in out.tokens]
    assert texts[0] == texts[1]
    assert len(texts[0]) == 40


def test_kimi_k2() -> None:
    cfg = ModelConfig.from_dict(PUBLISHED["Kimi-K2"])
    assert cfg.architecture == "DeepseekV3ForCausalLM"
    assert cfg.rope_scaling == YarnScaling(32.0, 4096, 1.0, 1.0, 1.0, 1.0)
    assert cfg.num_nextn_predict_layers == 0


SMALL = {
    "vocab_size": 640, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "intermediate_size": 96, "moe_intermediate_size": 32, "n_routed_experts": 16,
    "max_position_embeddings": 1024, "eos_token_id": 1, "bos_token_id": 0,
}  # fmt: skip


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_a_small_one_starts_and_writes(name: str, kernels: str, tmp_path: Path) -> None:
    """Random weights; the attention's widths are the published ones."""
    if kernels == "cpu":
        built_levels()
    (tmp_path / "config.json").write_text(json.dumps({**PUBLISHED[name], **SMALL}))
    layers = PUBLISHED[name].get("num_nextn_predict_layers", 0)
    engine = Engine(
        EngineConfig(
            str(tmp_path), load_format="dummy", kernel_backend=kernels, speculative_num_steps=2 * layers,
            kv_cache_tokens=512, threads=1, check_integrity=True,
        )
    )  # fmt: skip
    engine.add(Request("a", [3, 4, 5], SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)))
    tokens: list[int] = []
    while engine.has_work():
        for out in engine.step():
            tokens += out.tokens
            assert out.error is None
    assert len(tokens) == 6
    assert engine.stats().spec.proposed == [] if not layers else engine.stats().spec.proposed[1] > 0


FLOAT = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
QUANTIZED: dict[str, tuple[dict[str, Any], str]] = {
    # What is published of GLM-4.7-Flash in FP8: llm-compressor's scales for each channel.
    "compressed-tensors": (
        {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": FLOAT}}},
        "config_groups.group_0.weights.type is 'float'; supported: 'int'",
    ),
    "bitsandbytes": (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        "quant_method is 'bitsandbytes'; supported: 'fp8'",
    ),
}


@pytest.mark.parametrize("kind", QUANTIZED)
def test_quantized_versions_that_are_not_read_are_refused_by_name(kind: str) -> None:
    quantization, message = QUANTIZED[kind]
    with pytest.raises(ValueError, match=re.escape(f"config.json: quantization_config.{message}")):
        ModelConfig.from_dict({**PUBLISHED["GLM-4.7-Flash"], "quantization_config": quantization})


def test_fp8_in_blocks_is_read() -> None:
    quantization = {
        "quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128],
    }  # fmt: skip
    for name in ("GLM-4.7-Flash", "JoyAI-LLM-Flash"):
        cfg = ModelConfig.from_dict({**PUBLISHED[name], "quantization_config": quantization})
        assert cfg.quantization is not None
