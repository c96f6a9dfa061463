"""The naive and the absorbed form give the same numbers, in every mix of prompts and decodes."""

import pytest
import torch
from support.checkpoints import tiny_config

from nextn.distributed.group import Alone
from nextn.families.config import ModelConfig
from nextn.layers.batch import Span, build_batch
from nextn.layers.mla import MLA
from nextn.layers.rotary import rotary_tables
from nextn.layers.sharing import Sharing
from nextn.ops.reference import Reference

CPU = torch.device("cpu")


@pytest.mark.parametrize("q_lora_rank", [None, 24])
def test_naive_equals_absorbed(q_lora_rank):
    cfg = ModelConfig.from_dict(tiny_config(q_lora_rank=q_lora_rank))
    gen = torch.Generator().manual_seed(0)
    mla = MLA(Sharing(cfg, Reference(), torch.float32, CPU, Alone()))
    for name, t in mla.targets("").items():
        t.copy_(
            torch.ones(t.shape)
            if "norm" in name
            else torch.randn(t.shape, generator=gen) * t.shape[-1] ** -0.5
        )
    cos, sin = rotary_tables(cfg, 700, CPU)
    pages = torch.randperm(300, generator=gen).add(1).tolist()
    spans = [
        Span([0] * 300, 0, pages[:80]),  # a whole prompt
        Span([0] * 3, 40, pages[80:100]),  # a verification
        Span([0] * 50, 10, pages[100:120]),  # a later chunk
        Span([0], 280, pages[120:200]),
    ]
    outs = []
    for apart in (False, True):
        batch = build_batch(spans, 4, CPU, prompts_apart=apart)
        assert (batch.attention.prompts is not None) == apart
        x = torch.randn(len(batch.tokens), cfg.hidden_size, generator=torch.Generator().manual_seed(5))
        cache = torch.randn(1300, cfg.latent_dim, generator=torch.Generator().manual_seed(1))
        outs.append(mla.forward(x, batch, cos[batch.positions], sin[batch.positions], cache)[: batch.rows])
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-5, atol=1e-5)
    assert torch.equal(outs[0][300:303], outs[1][300:303])
    only = build_batch(spans[:1], 4, CPU, prompts_apart=True)
    rows = mla.forward(x[:304], only, cos[only.positions], sin[only.positions], cache)[:300]
    torch.testing.assert_close(rows, outs[0][:300], rtol=1e-5, atol=1e-5)
