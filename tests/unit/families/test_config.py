"""ModelConfig: what is parsed, and that everything else is refused by file, key and value."""

import copy
import json
import re

import pytest
from support.checkpoints import tiny_config
from transformers import DeepseekV3Config

from nextn.families.config import ModelConfig, YarnScaling
from nextn.families.files import CheckpointError
from nextn.families.quantization import Fp8Blocks

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 64]}
YARN = tiny_config()["rope_scaling"]


def without(key, **changes):
    config = tiny_config(**changes)
    del config[key]
    return config


def test_all_fields():
    cfg = ModelConfig.from_dict(tiny_config(quantization_config=FP8))
    assert cfg == ModelConfig(
        architecture="DeepseekV3ForCausalLM", vocab_size=48, hidden_size=32, num_hidden_layers=3,
        num_attention_heads=2, intermediate_size=40, moe_intermediate_size=16, first_k_dense_replace=1,
        n_routed_experts=8, n_shared_experts=2, num_experts_per_tok=3, n_group=4, topk_group=2,
        norm_topk_prob=True, routed_scaling_factor=2.5, q_lora_rank=12, kv_lora_rank=10, qk_nope_head_dim=6,
        qk_rope_head_dim=4, v_head_dim=8, max_position_embeddings=256, rope_theta=10000.0,
        rope_scaling=YarnScaling(4.0, 64, 32.0, 1.0, 1.0, 1.0), rms_norm_eps=1e-6,
        bos_token_id=0, eos_token_ids=(1,), num_nextn_predict_layers=1, tie_word_embeddings=False,
        quantization=Fp8Blocks((128, 64)),
    )  # fmt: skip
    assert (cfg.qk_head_dim, cfg.latent_dim) == (10, 14)
    assert [cfg.is_moe(i) for i in range(4)] == [False, True, True, True]


def test_deepseek_v3_itself():
    """The published config.json, abridged to the keys that matter and some that do not."""
    cfg = ModelConfig.from_dict({
        "architectures": ["DeepseekV3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"}, "aux_loss_alpha": 0.001,
        "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
        "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432, "kv_lora_rank": 512,
        "max_position_embeddings": 163840, "model_type": "deepseek_v3", "moe_intermediate_size": 2048,
        "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256, "n_shared_experts": 1,
        "norm_topk_prob": True, "num_attention_heads": 128, "num_experts_per_tok": 8,
        "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
        "pretraining_tp": 1, "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "quantization_config": {**FP8, "weight_block_size": [128, 128]}, "rms_norm_eps": 1e-06,
        "rope_scaling": {
            "beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096, "type": "yarn",
        },
        "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": True,
        "tie_word_embeddings": False, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
        "use_cache": True, "v_head_dim": 128, "vocab_size": 129280,
    })  # fmt: skip
    assert cfg.rope_scaling == YarnScaling(40.0, 4096, 32.0, 1.0, 1.0, 1.0)
    assert cfg.quantization == Fp8Blocks((128, 128))
    assert cfg.latent_dim == 576
    assert not cfg.is_moe(2)
    assert cfg.is_moe(61)


def test_absent_keys_have_transformers_defaults():
    sizes = {
        "architectures", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "n_routed_experts", "moe_intermediate_size",
    }  # fmt: skip
    given = {k: v for k, v in tiny_config(num_hidden_layers=6, n_routed_experts=64).items() if k in sizes}
    cfg = ModelConfig.from_dict(given)
    theirs = DeepseekV3Config()
    for name in (
        "first_k_dense_replace", "n_shared_experts", "num_experts_per_tok", "n_group", "topk_group",
        "norm_topk_prob", "routed_scaling_factor", "max_position_embeddings", "rms_norm_eps",
        "bos_token_id", "tie_word_embeddings",
    ):  # fmt: skip
        assert getattr(cfg, name) == getattr(theirs, name), name
    assert cfg.eos_token_ids == (theirs.eos_token_id,)
    assert cfg.rope_theta == theirs.rope_parameters["rope_theta"]
    assert cfg.rope_scaling is None
    assert cfg.num_nextn_predict_layers == 0
    assert cfg.quantization is None


@pytest.mark.parametrize("scaling", [YARN, None])
def test_transformers_5_form(scaling, tmp_path):
    """The same model saved by transformers reads the same."""
    config = tiny_config(rope_scaling=scaling, rope_theta=5000.0)
    DeepseekV3Config(**copy.deepcopy(config)).save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert "rope_parameters" in saved
    assert "rope_scaling" not in saved
    saved["architectures"] = config["architectures"]
    assert ModelConfig.from_dict(saved) == ModelConfig.from_dict(config)


def test_yarn_defaults():
    short = {"rope_type": "yarn", "factor": 2, "original_max_position_embeddings": 128}
    cfg = ModelConfig.from_dict(tiny_config(rope_scaling=short))
    assert cfg.rope_scaling == YarnScaling(2.0, 128, 32.0, 1.0, 1.0, 0.0)


@pytest.mark.parametrize(
    "changes",
    [
        {"n_routed_experts": None},
        {"n_routed_experts": 0},
        {"first_k_dense_replace": 3},
        {"first_k_dense_replace": 9},
    ],
)
def test_dense_only(changes):
    cfg = ModelConfig.from_dict(tiny_config(**changes))
    assert cfg.n_routed_experts == 0
    assert not any(cfg.is_moe(i) for i in range(5))


def test_optional_parts():
    cfg = ModelConfig.from_dict(
        tiny_config(q_lora_rank=None, n_shared_experts=None, bos_token_id=None, eos_token_id=None)
    )
    assert (cfg.q_lora_rank, cfg.n_shared_experts, cfg.bos_token_id, cfg.eos_token_ids) == (None, 0, None, ())


def test_model_type_stands_in_for_architectures():
    assert ModelConfig.from_dict(without("architectures")).architecture == "DeepseekV3ForCausalLM"


def test_generation_config_is_merged(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(tiny_config(eos_token_id=[7, 1])))
    assert ModelConfig.from_folder(tmp_path).eos_token_ids == (7, 1)
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [1, 9], "temperature": 0.6}))
    assert ModelConfig.from_folder(str(tmp_path)).eos_token_ids == (7, 1, 9)
    generation.write_text(json.dumps({"eos_token_id": 480}))
    with pytest.raises(ValueError, match=r"generation_config\.json: eos_token_id is 480; .* below 48"):
        ModelConfig.from_folder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe_layer_freq": 2}, "moe_layer_freq is 2; supported: 1"),
        ({"scoring_func": "softmax"}, "scoring_func is 'softmax'; supported: 'sigmoid'"),
        ({"topk_method": "greedy"}, "topk_method is 'greedy'; supported: 'noaux_tc'"),
        ({"attention_bias": True}, "attention_bias is True; supported: False"),
        ({"attention_bias": 0}, "attention_bias is 0; supported: False"),
        ({"rope_interleave": False}, "rope_interleave is False; supported: True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; supported: 'silu'"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1; supported: 2 or None"),
        ({"vocab_size": "48"}, "vocab_size is '48'; it must be an integer >= 1"),
        ({"vocab_size": True}, "vocab_size is True; it must be an integer >= 1"),
        ({"hidden_size": 32.0}, "hidden_size is 32.0; it must be an integer >= 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0; it must be an integer >= 1"),
        ({"num_nextn_predict_layers": -1}, "num_nextn_predict_layers is -1; it must be an integer >= 0"),
        ({"qk_rope_head_dim": 5}, "qk_rope_head_dim is 5; it must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps is 0; it must be a number > 0"),
        ({"routed_scaling_factor": float("nan")}, "routed_scaling_factor is nan; it must be a number > 0"),
        ({"routed_scaling_factor": 1e308}, "routed_scaling_factor is 1e+308; it must be between 1e-30"),
        ({"rope_theta": 10**400}, f"rope_theta is {10**400}; it must be between 1e-30 and 1e+30"),
        ({"rope_theta": 1}, "rope_theta is 1; with YaRN it must be more than 1"),
        ({"max_position_embeddings": 2**63}, f"max_position_embeddings is {2**63}; it must be an integer"),
        ({"architectures": [{}]}, "architectures is [{}]: not supported"),
        ({"architectures": 5}, "architectures is [5]: not supported"),
        ({"architectures": None, "model_type": []}, "it has no architectures, and model_type is []"),
        ({"norm_topk_prob": 1}, "norm_topk_prob is 1; it must be true or false"),
        ({"n_group": 3}, "n_group is 3; it must divide the 8 n_routed_experts into equal groups"),
        ({"n_group": 8}, "n_group is 8; it must divide the 8 n_routed_experts into equal groups of two"),
        ({"topk_group": 5}, "topk_group is 5; it must be at most n_group, 4"),
        ({"num_experts_per_tok": 5}, "num_experts_per_tok is 5; 2 groups have only 4 experts"),
        ({"eos_token_id": 48}, "eos_token_id is 48; it must be a token id below 48, or a list of them"),
        ({"eos_token_id": [1, "2"]}, "eos_token_id is [1, '2']"),
        ({"rope_scaling": "yarn"}, "rope_scaling is 'yarn'; it must be a JSON object or null"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; supported: None or 1"),
        ({"rope_parameters": {"rope_type": "default"}}, "it contradicts rope_scaling"),
    ],
)  # fmt: skip
def test_refused_values_name_the_key(changes, message):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        ModelConfig.from_dict(tiny_config(**changes), source="x/config.json")
    assert str(caught.value).startswith("x/config.json: ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"type": "linear"}, "type is 'linear'; supported: 'default' or 'yarn'"),
        ({"rope_type": "longrope"}, "rope_type is 'longrope'; supported: 'default' or 'yarn'"),
        ({"rope_type": "default"}, "type is 'yarn'; it contradicts rope_type, 'default'"),
        ({"factor": 0.5}, "factor is 0.5; it must be at least 1"),
        ({"factor": "4"}, "factor is '4'; it must be a number > 0"),
        ({"beta_fast": -1}, "beta_fast is -1; it must be a number > 0"),
        ({"beta_fast": 5e-324}, "beta_fast is 5e-324; it must be between 1e-30 and 1e+30"),
        ({"truncate": False}, "truncate is False; supported: True"),
        ({"attention_factor": 2.0}, "attention_factor is 2.0; supported: None"),
        ({"short_factor": [1]}, "short_factor is [1]; supported keys: "),
        (
            {"mscale": 0.7, "mscale_all_dim": 0},
            "mscale is 0.7; with mscale_all_dim 0 its meaning is ambiguous",
        ),
        (
            {"original_max_position_embeddings": None},
            "original_max_position_embeddings is None; it must be an",
        ),
    ],
)
def test_refused_scaling(changes, message):
    with pytest.raises(ValueError, match=re.escape(f"config.json: rope_scaling.{message}")):
        ModelConfig.from_dict(tiny_config(rope_scaling={**YARN, **changes}))


def test_one_mscale_of_two_is_refused():
    scaling = {k: v for k, v in YARN.items() if k != "mscale"}
    with pytest.raises(ValueError, match="mscale is None; with mscale_all_dim 1 its meaning is ambiguous"):
        ModelConfig.from_dict(tiny_config(rope_scaling=scaling))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quant_method": "hqq"}, "quant_method is 'hqq'; supported: 'fp8' or 'compressed-tensors'"),
        ({"fmt": "e5m2"}, "fmt is 'e5m2'; supported: 'e4m3'"),
        ({"activation_scheme": "static"}, "activation_scheme is 'static'; supported: 'dynamic'"),
        ({"weight_block_size": None}, "weight_block_size is None; supported: two positive integers"),
        ({"weight_block_size": [10**18, 1]}, f"weight_block_size is [{10**18}, 1]; supported: two positive"),
        ({"weight_block_size": [128, 0]}, "weight_block_size is [128, 0]; supported: two positive integers"),
    ],
)
def test_refused_quantization(changes, message):
    with pytest.raises(ValueError, match=re.escape(f"config.json: quantization_config.{message}")):
        ModelConfig.from_dict(tiny_config(quantization_config={**FP8, **changes}))


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "moe_intermediate_size",
    ],
)  # fmt: skip
def test_missing_keys_are_named(key):
    with pytest.raises(ValueError, match=f"^config.json: {key} is missing; it is required$"):
        ModelConfig.from_dict(without(key))


def test_broken_files(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere: there is no such folder"):
        ModelConfig.from_folder(tmp_path / "nowhere")
    with pytest.raises(
        CheckpointError, match=r"config\.json: there is no such file in the folder; it is empty"
    ):
        ModelConfig.from_folder(tmp_path)
    config = tmp_path / "config.json"
    for text, message in (
        ("{", r"config\.json is not JSON: "),
        ("[1]", "contains a JSON list"),
        ("[" * 10**5, "JSON"),
    ):
        config.write_text(text)
        with pytest.raises(CheckpointError, match=message):
            ModelConfig.from_folder(tmp_path)
    config.write_bytes(b"\xff\xfe{}")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        ModelConfig.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match=r"config\.json is a file; --model-path must name the folder"):
        ModelConfig.from_folder(config)
