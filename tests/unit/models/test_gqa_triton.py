"""A model with grouped-query attention on the Triton kernels, under Triton's interpreter: plain torch's
numbers, and a row's bits however it came."""

import sys

import pytest
import torch
from support.checkpoints import gqa_config
from support.sharing import shared_model

from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span

if torch.cuda.is_available() or sys.platform != "linux":
    pytest.skip("needs triton's interpreter", allow_module_level=True)

CONFIG = gqa_config(
    "Qwen3ForCausalLM", num_hidden_layers=1, num_nextn_predict_layers=1, attention_bias=True, vocab_size=16
)
TOKENS = [5, 6, 7]


@torch.inference_mode()
def outputs(model, cuts):
    """Logits and drafts of all tokens, which come in pieces of so many."""
    pool = KVPool(2, 8, 4, model.cache_layout, torch.float32, model.device)
    found, done = [], 0
    for n in cuts:
        spans = [Span(TOKENS[done : done + n], done, [3])]
        hidden = model.forward(model.batch(spans, 4), pool).clone()
        drafts = model.draft(
            model.batch([Span([t + 1 for t in spans[0].tokens], done, [3])], 4), hidden, pool
        )
        found.append(torch.cat((model.logits(hidden)[:n], drafts[:n]), dim=1))
        done += n
    return torch.cat(found)


def test_a_model():
    plain, model = shared_model(CONFIG), shared_model(CONFIG, ops="triton")
    model.eager = True
    want = outputs(plain, [3])
    got = outputs(model, [3])
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert torch.equal(outputs(model, [2, 1]), got)
