"""The engine on a CUDA device with the plain torch ops. Skipped without a device. test_triton.py tests the
Triton ops."""

import pytest
import torch
from support.engine_runs import runner_of

from nextn.bench.prompts import heldout_prompts
from nextn.llm import LLM
from nextn.ops.probe import product_modes
from nextn.request import SamplingParams

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
GREEDY = SamplingParams(max_tokens=32, temperature=0, ignore_eos=True)
HOT = SamplingParams(max_tokens=32, temperature=1.0, seed=3, ignore_eos=True)


def llm(device, drafts, **options):
    return LLM(
        device=device, kernel_backend="reference", dtype="float32", speculative_num_steps=drafts,
        kv_cache_tokens=8192, check_integrity=True, **options,
    )  # fmt: skip


def ids(model, params, n=6):
    prompts = [model.tokenizer.encode(p)[:100] for p in heldout_prompts(n)]
    return [c.token_ids for c in model.generate(prompts, params)]


@pytest.mark.parametrize("params", [GREEDY, HOT], ids=["greedy", "seeded"])
def test_identity_over_drafts_chunks_and_batch(params):
    want = ids(llm("cuda", 0), params)
    assert ids(llm("cuda", 2), params) == want
    assert ids(llm("cuda", 3, chunked_prefill_size=16, max_running_requests=4), params) == want
    assert ids(llm("cuda", 2, disable_radix_cache=True), params, n=1) == want[:1]


def test_parity_with_the_cpu():
    """Only the first tokens have to agree: another device adds in another order."""
    cpu, cuda = ids(llm("cpu", 0), GREEDY), ids(llm("cuda", 2), GREEDY)
    same = sum(a[:8] == b[:8] for a, b in zip(cpu, cuda, strict=True))
    assert same >= len(cpu) - 1


def test_logits_are_close():
    tokens = None
    outs = []
    for device in ("cpu", "cuda"):
        model = llm(device, 0)
        tokens = tokens or model.tokenizer.encode(heldout_prompts(1)[0])[:64]
        runner = runner_of(model.engine)
        from nextn.layers.batch import Span, build_batch

        batch = build_batch([Span(tokens, 0, list(range(1, 10)))], 16, torch.device(device))
        with torch.inference_mode():
            outs.append(runner.model.logits(runner.model.forward(batch, runner.pool))[: len(tokens)].cpu())
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-3, atol=1e-3)


def test_the_probe_runs():
    modes = product_modes({(64, 64)}, torch.float32, torch.device("cuda"))
    assert modes[64, 64] in ("direct", "blocks", "sums")
