"""A config held against the files: what does not fit is named by its field, before anything is counted
through. The same under a memory limit is in tests/unit/engine/test_hostile_checkpoints.py."""

from __future__ import annotations

import itertools
import math

import pytest
from support.checkpoints import random_tensors, tiny_config, write_checkpoint

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.names import expected_tensors, size_of
from nextn.models.sizes import check_target, checked_config

CONFIG = tiny_config()
TENSORS = random_tensors(expected_tensors(ModelConfig.from_dict(CONFIG), 1))


def test_the_size_without_a_loop():
    for layers, dense, experts, shared, query, tied, nextn in itertools.product(
        (1, 3, 5), (0, 1, 9), (0, 8), (0, 2), (None, 12), (False, True), (0, 2)
    ):
        if not experts and shared:
            continue
        cfg = ModelConfig.from_dict(
            tiny_config(
                num_hidden_layers=layers, first_k_dense_replace=dense, n_routed_experts=experts,
                n_shared_experts=shared, q_lora_rank=query, tie_word_embeddings=tied,
                num_nextn_predict_layers=2,
            )
        )  # fmt: skip
        shapes = expected_tensors(cfg, nextn)
        assert size_of(cfg, nextn) == (len(shapes), sum(map(math.prod, shapes.values())))


def test_a_config_that_fits(tmp_path):
    write_checkpoint(tmp_path, CONFIG, TENSORS, shards=2)
    cfg = checked_config(tmp_path)
    assert cfg == ModelConfig.from_dict(CONFIG)
    check_target(tmp_path, cfg)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"num_hidden_layers": 5}, "the files hold layers 0 to 3"),
        ({"n_routed_experts": 64}, "the files hold experts 0 to 7"),
        ({"vocab_size": 49}, r"model.embed_tokens.weight in the files is \[48, 32\]"),
        ({"hidden_size": 31}, r"model.embed_tokens.weight in the files is \[48, 32\]"),
        ({"intermediate_size": 41}, r"gate_proj.weight in the files is \[40, 32\]"),
        ({"moe_intermediate_size": 17}, r"experts.0.gate_proj.weight in the files is \[16, 32\]"),
        ({"n_shared_experts": 3}, r"shared_experts.gate_proj.weight in the files is \[32, 32\]"),
        ({"q_lora_rank": 13}, r"q_a_layernorm.weight in the files is \[12\]"),
        ({"kv_lora_rank": 11}, r"kv_a_layernorm.weight in the files is \[10\]"),
        ({"qk_rope_head_dim": 6}, r"kv_a_proj_with_mqa.weight in the files is \[14, 32\]"),
        ({"qk_nope_head_dim": 7}, r"q_b_proj.weight in the files is \[20, 12\]"),
        ({"v_head_dim": 9}, r"o_proj.weight in the files is \[32, 16\]"),
        ({"num_attention_heads": 4, "num_key_value_heads": 4}, "and num_attention_heads 4;.*o_proj.weight"),
    ],
)
def test_a_field_that_does_not_fit(tmp_path, changes, found):
    write_checkpoint(tmp_path, CONFIG | changes, TENSORS)
    with pytest.raises(CheckpointError, match=found) as caught:
        checked_config(tmp_path)
    field = next(iter(changes))
    assert f"{tmp_path / 'config.json'}: " in str(caught.value)
    assert field in str(caught.value)


def test_modules_that_the_files_cannot_hold(tmp_path):
    """Converters that drop the modules keep the key, whatever it says."""
    write_checkpoint(tmp_path, CONFIG | {"num_nextn_predict_layers": 10**9}, TENSORS)
    assert checked_config(tmp_path).num_nextn_predict_layers == 1
    target = {n: t for n, t in TENSORS.items() if not n.startswith("model.layers.3.")}
    write_checkpoint(tmp_path / "without", CONFIG | {"num_nextn_predict_layers": 10**9}, target)
    assert checked_config(tmp_path / "without").num_nextn_predict_layers == 0


def test_tensors_that_are_missing_are_named_together(tmp_path):
    gone = (
        "model.embed_tokens.weight",
        "model.layers.0.mlp.gate_proj.weight",
        "model.layers.1.mlp.gate.weight",
    )
    write_checkpoint(tmp_path, CONFIG, {n: t for n, t in TENSORS.items() if n not in gone})
    cfg = checked_config(tmp_path)
    with pytest.raises(CheckpointError, match="3 missing: " + ", ".join(gone)):
        check_target(tmp_path, cfg)
