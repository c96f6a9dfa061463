"""Models ask the family how its NextN modules are made."""

import dataclasses

import pytest
import torch
from support.checkpoints import tiny_config
from support.native_model import native_model, pool_for, reference_model, step

from nextn.families import deepseek_v3
from nextn.families.config import ModelConfig
from nextn.layers.batch import Span
from nextn.models.names import expected_tensors, nextn_prefixes, nextn_tensors, shared_tensors

CONFIG = tiny_config(num_nextn_predict_layers=1)
CFG = ModelConfig.from_dict(CONFIG)


def tensors(expected):
    gen = torch.Generator().manual_seed(0)
    return {
        name: torch.randn(shape, generator=gen).mul(shape[-1] ** -0.5).bfloat16()
        for name, shape in expected.items()
    }


@pytest.mark.parametrize("make", [reference_model, native_model])
def test_which_half_of_the_concatenation_is_first(make, monkeypatch):
    weights = tensors(expected_tensors(CFG, 1))
    name = f"model.layers.{CFG.num_hidden_layers}.eh_proj.weight"

    def drafted(given):
        model = make(CONFIG, given)
        return step(model, [Span([3, 1, 4, 1, 5], 0, [1, 2])], pool_for(model, 4, 4, 0))[2]

    first = drafted(weights)
    monkeypatch.setattr(deepseek_v3, "MTP", dataclasses.replace(deepseek_v3.MTP, embedding_first=False))
    second = drafted(weights | {name: weights[name].roll(CFG.hidden_size, 1)})
    torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(drafted(weights), first, rtol=1e-2, atol=1e-2)


def test_names_are_the_familys(monkeypatch):
    spec = dataclasses.replace(
        deepseek_v3.MTP, prefix="model.mtp.{layer}.", projection="input_proj", copies=("embed",)
    )
    monkeypatch.setattr(deepseek_v3, "MTP", spec)
    prefix = f"model.mtp.{CFG.num_hidden_layers}."
    found = nextn_tensors(CFG, 1)
    assert all(name.startswith(prefix) for name in found)
    assert found[f"{prefix}input_proj.weight"] == (CFG.hidden_size, 2 * CFG.hidden_size)
    assert f"{prefix}self_attn.o_proj.weight" in found
    assert set(shared_tensors(CFG, 1)) == {f"{prefix}embed.weight"}
    assert nextn_prefixes(CFG) == (prefix,)
