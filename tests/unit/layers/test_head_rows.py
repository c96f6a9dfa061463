"""The order of a head's elements: the kernels' rotation of neighbours is transformers' rotation of halves."""

import pytest
import torch
from support.checkpoints import gqa_config, tiny_config
from transformers.models.glm4_moe.modeling_glm4_moe import apply_rotary_pos_emb

from nextn.families.config import ModelConfig
from nextn.layers.head_rows import as_computed, head_order, row_order
from nextn.ops.rotary import rotate


def rand(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("width", "rotary"), [(8, 8), (12, 4), (6, 2)])
def test_rotation(width, rotary):
    heads, rows, order = 3, 5, head_order(width, rotary)
    assert sorted(order) == list(range(width))
    q, angle = rand(rows, heads, width), rand(rows, rotary // 2, seed=1)
    cos, sin = angle.cos(), angle.sin()
    want = apply_rotary_pos_emb(q, q, torch.cat((cos, cos), -1), torch.cat((sin, sin), -1))[0]
    mine = q[..., order]
    rotated = rotate(mine[..., width - rotary :], cos, sin)
    torch.testing.assert_close(torch.cat((mine[..., : width - rotary], rotated), -1), want[..., order])


def test_a_head_has_the_same_bits_alone():
    q, angle = rand(7, 5, 10), rand(7, 5, seed=1)
    whole = rotate(q, angle.cos(), angle.sin())
    for some in (slice(1), slice(1, 4), slice(4, 5)):
        assert torch.equal(rotate(q[:, some], angle.cos(), angle.sin()), whole[:, some])


def test_which_tensors_are_reordered():
    cfg = ModelConfig.from_dict(gqa_config("Glm4MoeForCausalLM"))
    order = head_order(16, 8)
    attention = "model.layers.3.self_attn."
    for name, heads in (("q_proj.weight", 6), ("k_proj.bias", 2), ("q_norm.weight", 1), ("k_norm.weight", 1)):
        rows = 16 * heads
        tensor = rand(rows, 4) if name.endswith("proj.weight") else rand(rows)
        want = [16 * h + i for h in range(heads) for i in order]
        assert row_order(cfg, attention + name, rows) == want
        assert torch.equal(as_computed(cfg, attention + name, tensor), tensor[want])
    for name in ("v_proj.weight", "v_proj.bias", "o_proj.weight"):
        assert row_order(cfg, attention + name, 32) is None
    mla = ModelConfig.from_dict(tiny_config())
    assert row_order(mla, "model.layers.0.self_attn.q_proj.weight", 32) is None
