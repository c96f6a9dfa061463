"""Models ask the family how its NextN modules are made."""

import dataclasses
import json
import math

import pytest
import torch
from support.checkpoints import tiny_config, write_checkpoint
from support.native_model import native_model, pool_for, reference_model, step

from nextn.families import deepseek_v3
from nextn.families.config import ModelConfig
from nextn.layers.batch import Span
from nextn.models.draft_folder import DraftFolder
from nextn.models.export import export_mtp
from nextn.models.names import expected_tensors, nextn_prefixes, nextn_tensors, shared_tensors, size_of
from nextn.models.sizes import checked_config

CONFIG = tiny_config(num_nextn_predict_layers=1)
CFG = ModelConfig.from_dict(CONFIG)


def tensors(expected):
    gen = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=gen).mul(shape[-1] ** -0.5).bfloat16()
        for name, shape in expected.items()
    }


def changed(monkeypatch, **changes):
    monkeypatch.setattr(deepseek_v3, "MTP", dataclasses.replace(deepseek_v3.MTP, **changes))


def drafted(make, weights, start=0):
    model = make(CONFIG, weights)
    return step(model, [Span([3, 1, 4, 1, 5], start, [1, 2, 3])], pool_for(model, 4, 4, 0))[2]


@pytest.mark.parametrize("make", [reference_model, native_model])
def test_which_half_of_the_concatenation_is_first(make, monkeypatch):
    weights = tensors(expected_tensors(CFG, 1))
    name = f"model.layers.{CFG.num_hidden_layers}.eh_proj.weight"
    first = drafted(make, weights)
    changed(monkeypatch, embedding_first=False)
    second = drafted(make, weights | {name: weights[name].roll(CFG.hidden_size, 1)})
    torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(drafted(make, weights), first, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("make", [reference_model, native_model])
def test_the_embedding_at_position_0(make, monkeypatch):
    """Masked, it is as that of a token whose embedding is 0."""
    weights = tensors(expected_tensors(CFG, 1))
    first = drafted(make, weights)
    zero = weights["model.embed_tokens.weight"].clone()
    zero[16] = 0  # `step` makes up token 16 as the one after 3, which is at position 0
    wanted = drafted(make, weights | {"model.embed_tokens.weight": zero})
    changed(monkeypatch, masks_first=True)
    masked = drafted(make, weights)
    assert torch.equal(masked, wanted)
    assert not torch.allclose(masked, first, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("make", [reference_model, native_model])
def test_a_dense_module_of_a_model_with_experts(make, monkeypatch):
    changed(monkeypatch, dense=True)
    expected = expected_tensors(CFG, 1)
    assert size_of(CFG, 1) == (len(expected), sum(map(math.prod, expected.values())))
    prefix = f"model.layers.{CFG.num_hidden_layers}."
    assert expected[f"{prefix}mlp.gate_proj.weight"] == (CFG.intermediate_size, CFG.hidden_size)
    assert not any(name.startswith(prefix) and ".experts." in name for name in expected)
    assert drafted(make, tensors(expected)).isfinite().all()


def test_names_are_the_familys(monkeypatch):
    names = {"prefix": "model.mtp.{layer}.", "projection": "input_proj.weight", "head_copy": "head.weight"}
    changed(monkeypatch, **names)
    prefix = f"model.mtp.{CFG.num_hidden_layers}."
    found = nextn_tensors(CFG, 1)
    assert all(name.startswith(prefix) for name in found)
    assert found[f"{prefix}input_proj.weight"] == (CFG.hidden_size, 2 * CFG.hidden_size)
    assert f"{prefix}self_attn.o_proj.weight" in found
    assert set(shared_tensors(CFG, 1)) == {f"{prefix}embed_tokens.weight", f"{prefix}head.weight"}
    assert nextn_prefixes(CFG) == (prefix,)


def test_a_familys_own_names_go_through_export_and_draft_folder(monkeypatch, tmp_path):
    """Written, exported and read back under names that are not DeepSeek's."""
    changed(monkeypatch, prefix="model.mtp.{layer}.", projection="input_proj.weight", exported=("MTPAlone",))
    weights = tensors(expected_tensors(CFG, 1))
    cfg = checked_config(write_checkpoint(tmp_path / "whole", CONFIG, weights))
    assert cfg == CFG
    export_mtp(tmp_path / "whole", tmp_path / "alone")
    assert json.loads((tmp_path / "alone" / "config.json").read_text())["architectures"] == ["MTPAlone"]
    for folder in ("alone", "whole"):
        loaded = {}
        DraftFolder.open(tmp_path / folder, cfg).load(cfg, 1, loaded.__setitem__, torch.float32)
        assert loaded.keys() == nextn_tensors(cfg, 1).keys()
        assert all(torch.equal(loaded[name], weights[name]) for name in loaded)
