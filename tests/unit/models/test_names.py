"""Tensor names and shapes against transformers, in memory and as it saves them."""

import copy
import math

import pytest
import torch
from parity.oracle import DEEPSEEK_V2, DEEPSEEK_V2_LITE, GLM_FLASH
from safetensors import safe_open
from support.checkpoints import tiny_config
from transformers import (
    DeepseekV2Config,
    DeepseekV2ForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeLiteConfig,
    Glm4MoeLiteForCausalLM,
)

from nextn.families.config import ModelConfig
from nextn.models.fp8 import scale_shape
from nextn.models.names import expected_tensors, nextn_prefixes, shared_tensors
from nextn.models.torch_model import TorchModel
from nextn.ops.reference import Reference

CASES = {
    "all": {},
    "no q_lora": {"q_lora_rank": None},
    "dense by first_k": {"first_k_dense_replace": 3},
    "MoE from the first layer": {"first_k_dense_replace": 0, "n_shared_experts": 1},
    "tied": {"tie_word_embeddings": True},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_as_transformers_saves_them(changes, tmp_path):
    config = tiny_config(**changes)
    DeepseekV3ForCausalLM(DeepseekV3Config(**copy.deepcopy(config))).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert expected_tensors(ModelConfig.from_dict(config), 0) == saved


FAMILIES = {
    "GLM-4.7-Flash": (Glm4MoeLiteConfig, Glm4MoeLiteForCausalLM, GLM_FLASH),
    "DeepSeek-V2": (DeepseekV2Config, DeepseekV2ForCausalLM, DEEPSEEK_V2),
    "DeepSeek-V2-Lite": (DeepseekV2Config, DeepseekV2ForCausalLM, DEEPSEEK_V2_LITE),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_as_transformers_saves_other_families(name, tmp_path):
    config_class, model_class, changes = FAMILIES[name]
    config = tiny_config(**changes)
    model_class(config_class(**copy.deepcopy(config))).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        saved = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    assert expected_tensors(ModelConfig.from_dict(config), 0) == saved


def test_experts_fused_in_transformers_memory_hold_the_same_weights():
    """Per expert names and the fused parameters of transformers 5 cover the same elements."""
    config = tiny_config()
    model = DeepseekV3ForCausalLM(DeepseekV3Config(**copy.deepcopy(config)))
    ours = expected_tensors(ModelConfig.from_dict(config), 0)
    theirs = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    assert {n: s for n, s in ours.items() if ".experts." not in n} == {
        n: s for n, s in theirs.items() if ".experts." not in n
    }
    assert sum(map(math.prod, ours.values())) == sum(t.numel() for t in model.state_dict().values())


def test_nextn_layers():
    cfg = ModelConfig.from_dict(tiny_config(num_nextn_predict_layers=2))
    target, both = expected_tensors(cfg, 0), expected_tensors(cfg, 2)
    assert all(not name.startswith("model.layers.3.") for name in target)
    for layer in ("model.layers.3.", "model.layers.4."):
        added = {name[len(layer) :]: shape for name, shape in both.items() if name.startswith(layer)}
        decoder = {
            n[len("model.layers.2.") :]: s for n, s in target.items() if n.startswith("model.layers.2.")
        }
        own = {
            "enorm.weight": (32,), "hnorm.weight": (32,), "eh_proj.weight": (32, 64),
            "shared_head.norm.weight": (32,),
        }  # fmt: skip
        assert added == {**decoder, **own}
        assert any(".experts." in name for name in added)
    assert len(both) == len(target) + 2 * len(added)
    assert shared_tensors(cfg, 1) == {
        "model.layers.3.embed_tokens.weight": (48, 32),
        "model.layers.3.shared_head.head.weight": (48, 32),
    }
    assert not both.keys() & shared_tensors(cfg, 2).keys()
    assert nextn_prefixes(cfg) == ("model.layers.3.", "model.layers.4.")
    assert nextn_prefixes(cfg, 1) == ("model.layers.4.",)


def test_nextn_layer_of_a_dense_model_is_dense():
    cfg = ModelConfig.from_dict(tiny_config(n_routed_experts=None))
    assert "model.layers.3.mlp.gate_proj.weight" in expected_tensors(cfg, 1)
    assert not any(".experts." in name for name in expected_tensors(cfg, 1))


def test_tied_embeddings():
    cfg = ModelConfig.from_dict(tiny_config(tie_word_embeddings=True))
    assert "lm_head.weight" not in expected_tensors(cfg, 1)
    assert shared_tensors(cfg, 0) == {"lm_head.weight": (48, 32)}


def test_counts_of_deepseek_v3():
    """671 B parameters in the target; 684,531,386,000 elements are published, with scales and copies."""
    cfg = ModelConfig.from_dict({
        **tiny_config(rope_scaling=None), "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
        "num_attention_heads": 128, "num_key_value_heads": 128, "intermediate_size": 18432,
        "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "n_routed_experts": 256,
        "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4, "q_lora_rank": 1536,
        "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    })  # fmt: skip
    assert sum(map(math.prod, expected_tensors(cfg, 0).values())) == 671_026_419_200
    published = expected_tensors(cfg, 1) | shared_tensors(cfg, 1)
    for name, shape in list(published.items()):
        if "_proj" in name and "eh_proj" not in name:
            published[name + "_scale_inv"] = scale_shape(shape, (128, 128))
    assert sum(map(math.prod, published.values())) == 684_531_386_000


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES.keys())
def test_the_model_takes_exactly_these(changes):
    cfg = ModelConfig.from_dict(tiny_config(**changes))
    model = TorchModel(cfg, Reference(), torch.float32, torch.device("cpu"), 1)
    targets = {name: tuple(t.shape) for name, t in model.targets().items()}
    assert targets == expected_tensors(cfg, 1)
