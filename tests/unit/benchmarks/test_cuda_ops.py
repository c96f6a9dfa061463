"""benchmarks/cuda_ops.py: its ops run, under Triton's interpreter; clocks and graphs need a GPU."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if torch.cuda.is_available() or sys.platform != "linux":
    pytest.skip("for Triton's interpreter", allow_module_level=True)

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def cuda_ops(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import cuda_ops

    monkeypatch.setattr(cuda_ops, "BF16", torch.float32)  # the interpreter computes bf16 wrongly
    monkeypatch.setattr(cuda_ops, "SPREAD", 1 << 16)
    yield cuda_ops
    for name in [n for n, m in sys.modules.items() if str(BENCHMARKS) in str(getattr(m, "__file__", ""))]:
        del sys.modules[name]


def test_every_case_runs(cuda_ops):
    sizes = replace(
        cuda_ops.PRESETS["69m"], vocab_size=96, hidden_size=32, num_attention_heads=2,
        moe_intermediate_size=16, n_routed_experts=4, n_group=2, topk_group=1, q_lora_rank=16,
        kv_lora_rank=16, qk_nope_head_dim=16,
        qk_rope_head_dim=16, v_head_dim=16,
    )  # fmt: skip
    found = list(cuda_ops.Step(sizes, requests=2, rows=3, context=20, device="cpu").cases())
    assert {"attention", "experts, shared too", "head and choice"} < {case.op for case in found}
    for case in found:
        assert case.work.bytes > 0
        assert len(case.calls) >= cuda_ops.CALLS
        result = case.calls[0]()
        if case.op != "dispatch":
            assert all(t.isfinite().all() for t in (result if type(result) is tuple else (result,)))
