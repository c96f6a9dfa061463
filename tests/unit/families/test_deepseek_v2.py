"""DeepSeek-V2's config: transformers' defaults, and the router's keys."""

import re

import pytest
from parity.oracle import DEEPSEEK_V2, DEEPSEEK_V2_LITE
from support.checkpoints import tiny_config
from transformers import DeepseekV2Config

from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors, size_of


def config(**changes):
    return tiny_config(**{**DEEPSEEK_V2, "num_nextn_predict_layers": 0, **changes})


def test_absent_keys_have_transformers_defaults():
    sizes = {
        "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "moe_intermediate_size", "num_experts_per_tok",
    }  # fmt: skip
    cfg = ModelConfig.from_dict({k: v for k, v in config().items() if k in sizes})
    theirs = DeepseekV2Config()
    for name in (
        "first_k_dense_replace", "n_shared_experts", "norm_topk_prob", "routed_scaling_factor",
        "max_position_embeddings", "rms_norm_eps", "bos_token_id", "tie_word_embeddings",
    ):  # fmt: skip
        assert getattr(cfg, name) == getattr(theirs, name), name
    assert cfg.eos_token_ids == (theirs.eos_token_id,)
    assert cfg.softmax_router
    assert (cfg.n_group, cfg.topk_group) == (1, 1)


def test_greedy_knows_no_groups():
    cfg = ModelConfig.from_dict(config(topk_method="greedy", n_group=8, topk_group=3))
    assert (cfg.n_group, cfg.topk_group) == (1, 1)
    cfg = ModelConfig.from_dict(config())
    assert (cfg.n_group, cfg.topk_group) == (4, 2)


@pytest.mark.parametrize("changes", [DEEPSEEK_V2, DEEPSEEK_V2_LITE])
def test_routers_have_no_bias(changes):
    cfg = ModelConfig.from_dict(config(**changes))
    expected = expected_tensors(cfg, 0)
    assert "model.layers.1.mlp.gate.weight" in expected
    assert not any("bias" in name for name in expected)
    assert size_of(cfg, 0)[0] == len(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scoring_func": "sigmoid"}, "scoring_func is 'sigmoid'; supported: 'softmax'"),
        ({"topk_method": "noaux_tc"}, "topk_method is 'noaux_tc'; supported: 'greedy' or 'group_limited"),
        ({"norm_topk_prob": True}, "norm_topk_prob is True; supported: False"),
        ({"n_group": None}, "n_group is None; it must be an integer >= 1"),
        ({"n_group": 3}, "n_group is 3; it must divide the 8 n_routed_experts into equal groups"),
        ({"num_experts_per_tok": None}, "num_experts_per_tok is None; it must be an integer"),
    ],
)
def test_refused(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ModelConfig.from_dict(config(**changes))
