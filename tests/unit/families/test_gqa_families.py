"""Families with grouped-query attention: what is parsed, what is refused by file, key and value."""

import copy
import json
import math
import re

import pytest
import torch
from support.checkpoints import GQA_TYPES, gqa_config
from support.published import PUBLISHED
from transformers import AutoConfig

from nextn.families.config import GqaAttention, LinearScaling, Llama3Scaling, ModelConfig, YarnScaling
from nextn.models.names import expected_tensors, size_of
from nextn.models.torch_model import TorchModel
from nextn.ops.reference import Reference

GLM, LLAMA, MIMO, QWEN2, QWEN3 = GQA_TYPES


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs(name):
    """Sizes are those of the published models, and the model takes exactly the tensors that are expected."""
    config, target, module = PUBLISHED[name]
    cfg = ModelConfig.from_dict(config)
    modules = cfg.num_nextn_predict_layers
    found = [size_of(cfg, n)[1] for n in (0, modules)]
    assert round(found[0] / 1e9, 1) == target
    assert round((found[1] - found[0]) / 1e9, 1) == module
    if modules:
        assert cfg.is_moe(cfg.num_hidden_layers) == (cfg.n_routed_experts > 0)
    some = cfg.cut(cfg.first_k_dense_replace + 1 if cfg.n_routed_experts else 2)
    expected = expected_tensors(some, modules)
    assert size_of(some, modules) == (len(expected), sum(map(math.prod, expected.values())))
    device = torch.device("meta")
    model = TorchModel(some, Reference(), torch.bfloat16, device, modules)
    assert {name: tuple(t.shape) for name, t in model.targets().items()} == expected
    assert model.cache_layout.width == cfg.cache_width


def test_what_differs_between_published_models():
    cfg = {name: ModelConfig.from_dict(config) for name, (config, _, _) in PUBLISHED.items()}
    assert cfg["GLM-4.5-Air"].gqa == GqaAttention(8, 128, 64, qk_norm=False, qkv_bias=True, out_bias=False)
    assert cfg["GLM-4.6"].gqa == GqaAttention(8, 128, 64, qk_norm=True, qkv_bias=True, out_bias=False)
    assert cfg["MiMo-7B-RL"].gqa == GqaAttention(8, 128, 128, qk_norm=False, qkv_bias=True, out_bias=False)
    assert cfg["Qwen3-8B"].gqa == GqaAttention(8, 128, 128, qk_norm=True, qkv_bias=False, out_bias=False)
    assert cfg["SmolLM2-135M"].gqa == GqaAttention(3, 64, 64, qk_norm=False, qkv_bias=False, out_bias=False)
    assert cfg["Llama-3.1-8B"].rope_scaling == Llama3Scaling(8.0, 1.0, 4.0, 8192)
    assert cfg["Llama-3.1-8B"].cache_width == 2 * 8 * 128
    assert (cfg["GLM-4.6"].qk_nope_head_dim, cfg["GLM-4.6"].qk_head_dim) == (64, 128)
    assert cfg["GLM-4.6"].module_at(0) == "model.layers.92."
    assert cfg["GLM-4.6"].cut(2).module_at(0) == "model.layers.92."
    assert cfg["MiMo-7B-RL"].module_at(0) == "model.mtp_layers.0."
    assert "model.mtp_layers.0.input_proj.weight" in expected_tensors(cfg["MiMo-7B-RL"], 1)


@pytest.mark.parametrize("architecture", [a for a in GQA_TYPES if a != MIMO])
def test_absent_keys_have_transformers_defaults(architecture):
    sizes = {
        "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "intermediate_size", "n_routed_experts", "moe_intermediate_size",
    }  # fmt: skip
    cfg = ModelConfig.from_dict({k: v for k, v in gqa_config(architecture).items() if k in sizes})
    theirs = AutoConfig.for_model(GQA_TYPES[architecture])
    names = ["max_position_embeddings", "rms_norm_eps", "bos_token_id", "tie_word_embeddings"]
    if architecture == GLM:
        names += [
            "first_k_dense_replace", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group",
            "norm_topk_prob", "routed_scaling_factor",
        ]  # fmt: skip
    for name in names:
        assert getattr(cfg, name) == getattr(theirs, name), name
    ends = theirs.eos_token_id
    assert cfg.eos_token_ids == (() if ends is None else (ends,))
    assert cfg.rope_theta == theirs.rope_parameters["rope_theta"]
    partial = theirs.rope_parameters.get("partial_rotary_factor", 1.0)
    head_dim = getattr(theirs, "head_dim", 8) if architecture == QWEN3 else 8
    assert (cfg.gqa.head_dim, cfg.gqa.rotary_dim) == (head_dim, head_dim * partial)
    assert cfg.gqa.qk_norm == (architecture == QWEN3 or getattr(theirs, "use_qk_norm", False))
    assert cfg.gqa.qkv_bias == (architecture == QWEN2 or theirs.attention_bias)


@pytest.mark.parametrize("architecture", [a for a in GQA_TYPES if a != MIMO])
def test_transformers_5_form(architecture, tmp_path):
    """The same model saved by transformers reads the same."""
    config = gqa_config(architecture, rope_theta=5000.0)
    theirs = AutoConfig.for_model(**copy.deepcopy(config))
    theirs.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_theta" not in saved
    saved["architectures"] = config["architectures"]
    assert ModelConfig.from_dict(saved) == ModelConfig.from_dict(config)


@pytest.mark.parametrize(
    ("scaling", "found"),
    [
        (None, None),
        ({"rope_type": "default"}, None),
        ({"type": "linear", "factor": 4.0}, LinearScaling(4.0)),
        (
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
            YarnScaling(4.0, 64),
        ),
    ],
)
def test_scaling(scaling, found):
    assert ModelConfig.from_dict(gqa_config(LLAMA, rope_scaling=scaling)).rope_scaling == found


def test_without_the_key_heads_share_nothing():
    config = gqa_config(LLAMA)
    del config["num_key_value_heads"]
    assert ModelConfig.from_dict(config).num_key_value_heads == 6


LLAMA3 = {
    "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
    "original_max_position_embeddings": 64,
}  # fmt: skip
DSCALE = {"mscale": 1.0, "mscale_all_dim": 1.0}


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        (LLAMA, {"mlp_bias": True}, "mlp_bias is True; supported: False"),
        (LLAMA, {"sliding_window": 4096}, "sliding_window is 4096; supported: None"),
        (LLAMA, {"rope_interleaved": True}, "rope_interleaved is True; supported: False"),
        (LLAMA, {"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: 'silu'"),
        (
            LLAMA,
            {"num_key_value_heads": 4},
            "num_key_value_heads is 4; it must divide num_attention_heads, 6",
        ),
        (
            LLAMA,
            {"hidden_size": 50},
            "hidden_size is 50; without head_dim, num_attention_heads, 6, must divide",
        ),
        (LLAMA, {"head_dim": 7}, "head_dim is 7; 7 of its 7 elements would be rotated; it must be even"),
        (
            LLAMA,
            {"rope_scaling": {"type": "dynamic", "factor": 2}},
            "rope_scaling.type is 'dynamic'; supported",
        ),
        (
            LLAMA,
            {"rope_scaling": {"rope_type": "longrope"}},
            "rope_scaling.rope_type is 'longrope'; supported",
        ),
        (
            LLAMA,
            {"rope_scaling": {**LLAMA3, "high_freq_factor": 1}},
            "high_freq_factor is 1; it must be more",
        ),
        (LLAMA, {"rope_scaling": {**LLAMA3, "factor": 0.5}}, "factor is 0.5; it must be at least 1"),
        (LLAMA, {"rope_scaling": {"type": "linear"}}, "rope_scaling.factor is missing"),
        (
            QWEN3,
            {"rope_scaling": {"type": "yarn", "factor": 2, "original_max_position_embeddings": 9, **DSCALE}},
            "mscale_all_dim is not supported with this attention",
        ),
        (
            QWEN3,
            {"use_sliding_window": True, "max_window_layers": 2},
            "use_sliding_window is True; nextn computes full attention in every layer",
        ),
        (
            QWEN2,
            {"layer_types": ["full_attention", "sliding_attention"]},
            "layer_types is ['full_attention', 's",
        ),
        (QWEN2, {"attention_bias": False}, "attention_bias is False; supported: True"),
        (GLM, {"scoring_func": "softmax"}, "scoring_func is 'softmax'; supported: 'sigmoid'"),
        (GLM, {"partial_rotary_factor": 1.5}, "partial_rotary_factor is 1.5; it must be at most 1"),
        (
            GLM,
            {"partial_rotary_factor": 0.5, "rope_parameters": {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.5; it contradicts that of rope_parameters, 0.25",
        ),
        (GLM, {"use_qk_norm": 1}, "use_qk_norm is 1; it must be true or false"),
    ],
)
def test_refused_values_name_the_key(architecture, changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        ModelConfig.from_dict(gqa_config(architecture, **changes), source="x/config.json")
    assert str(caught.value).startswith("x/config.json: ")


def test_a_window_that_no_layer_has_is_none():
    cfg = ModelConfig.from_dict(gqa_config(QWEN2, use_sliding_window=True, max_window_layers=3))
    assert cfg.gqa is not None


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads"])
def test_missing_keys_are_named(key):
    config = gqa_config(QWEN3)
    del config[key]
    with pytest.raises(ValueError, match=f"^config.json: {key} is missing; it is required$"):
        ModelConfig.from_dict(config)
