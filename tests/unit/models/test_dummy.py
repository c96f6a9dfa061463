"""Random weights: deterministic per name, and of a scale at which a deep stack neither explodes nor dies."""

import torch
from support.checkpoints import random_tensors, tiny_config

from nextn.families.config import ModelConfig
from nextn.models.dummy import dummy_checkpoint
from nextn.models.names import expected_tensors


def test_every_expected_tensor_once():
    cfg = ModelConfig.from_dict(tiny_config())
    expected = expected_tensors(cfg, 1)
    placed = []
    dummy_checkpoint(cfg.names, expected, lambda name, t: placed.append((name, tuple(t.shape))), seed=0)
    assert placed == list(expected.items())


def test_a_tensor_depends_on_seed_and_name_only():
    shapes = {"a.weight": (8, 8), "b.weight": (8, 8)}
    first, alone = random_tensors(shapes, seed=3), random_tensors({"b.weight": (8, 8)}, seed=3)
    assert torch.equal(first["b.weight"], alone["b.weight"])
    assert not torch.equal(first["a.weight"], first["b.weight"])
    assert not torch.equal(first["a.weight"], random_tensors(shapes, seed=4)["a.weight"])


def test_scale():
    shapes = {
        "model.embed_tokens.weight": (500, 200), "x.q_a_proj.weight": (300, 400),
        "x.q_a_layernorm.weight": (50,),
        "model.norm.weight": (50,), "x.mlp.gate.e_score_correction_bias": (16,), "x.q_proj.bias": (16,),
    }  # fmt: skip
    made = random_tensors(shapes, dtype=torch.float16)
    assert abs(made["model.embed_tokens.weight"].float().std() - 1) < 0.02
    assert abs(made["x.q_a_proj.weight"].float().std() * 20 - 1) < 0.02
    assert made["x.q_a_layernorm.weight"].eq(1).all()
    assert made["model.norm.weight"].eq(1).all()
    assert made["x.q_proj.bias"].eq(0).all()
    assert made["x.mlp.gate.e_score_correction_bias"].eq(0).all()
    assert made["x.mlp.gate.e_score_correction_bias"].dtype == torch.float32
    assert {t.dtype for n, t in made.items() if "bias" not in n} == {torch.float16}


def test_activations_keep_their_size():
    shapes = {f"{i}.weight": (256, 256) for i in range(30)}
    x = torch.randn(4, 256, generator=torch.Generator().manual_seed(0))
    for weight in random_tensors(shapes, dtype=torch.float32).values():
        x = x @ weight.T
    assert 0.3 < x.std() < 3
