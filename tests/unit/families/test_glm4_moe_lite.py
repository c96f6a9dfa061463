"""GLM-4.7-Flash's config: transformers' defaults, and its list of the layers' kinds."""

import copy
import json
import re

import pytest
from support.checkpoints import tiny_config
from transformers import Glm4MoeLiteConfig

from nextn.families.config import ModelConfig

GLM = {"architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite"}
KINDS = ["dense", "dense", "sparse"]


def config(**changes):
    return tiny_config(**GLM, n_group=1, topk_group=1, **changes)


def test_absent_keys_have_transformers_defaults():
    sizes = {
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "n_routed_experts", "moe_intermediate_size",
    }  # fmt: skip
    cfg = ModelConfig.from_dict({**GLM, **{k: v for k, v in config().items() if k in sizes}})
    theirs = Glm4MoeLiteConfig()
    for name in (
        "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group", "norm_topk_prob",
        "routed_scaling_factor", "max_position_embeddings", "rms_norm_eps", "bos_token_id",
        "tie_word_embeddings",
    ):  # fmt: skip
        assert getattr(cfg, name) == getattr(theirs, name), name
    assert cfg.first_k_dense_replace == theirs.mlp_layer_types.count("dense")
    assert cfg.eos_token_ids == (theirs.eos_token_id,)
    assert cfg.rope_theta == theirs.rope_parameters["rope_theta"]


def test_as_transformers_saves_it(tmp_path):
    given = config(mlp_layer_types=KINDS, first_k_dense_replace=2)
    Glm4MoeLiteConfig(**copy.deepcopy(given)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    saved["architectures"] = given["architectures"]
    assert ModelConfig.from_dict(saved) == ModelConfig.from_dict(given)
    assert ModelConfig.from_dict(given).first_k_dense_replace == 2


def test_the_list_alone():
    given = config(mlp_layer_types=KINDS)
    del given["first_k_dense_replace"]
    assert ModelConfig.from_dict(given).first_k_dense_replace == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"mlp_layer_types": ["dense", "sparse"]},
            "mlp_layer_types is ['dense', 'sparse']; it must be 'dense'",
        ),
        ({"mlp_layer_types": ["sparse", "dense", "sparse"]}, "'dense' for the first layers and 'sparse'"),
        ({"mlp_layer_types": "sparse"}, "mlp_layer_types is 'sparse'; it must be 'dense'"),
        ({"mlp_layer_types": KINDS}, "first_k_dense_replace is 1; it contradicts mlp_layer_types, with 2"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'; supported: 'noaux_tc'"),
        ({"attention_bias": True}, "attention_bias is True; supported: False"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ModelConfig.from_dict(config(**changes))
