"""Steps on the device with the Triton kernels under Triton's interpreter: what runs on a GPU, but for the
compiler and the graphs. tests/gpu runs those."""

from __future__ import annotations

import sys

import pytest
import torch
from support.device_steps import Job, config, make_runner, same_results, serve
from support.sharing import shared_model

from nextn.cutoff import Cutoff
from nextn.models.cuda import CudaModel
from nextn.request import SamplingParams

if torch.cuda.is_available():
    pytest.skip("tests/gpu runs this on the device", allow_module_level=True)
if sys.platform != "linux":
    pytest.skip(f"no triton for {sys.platform}", allow_module_level=True)

from nextn.ops.triton.ops import TritonOps

CUTOFF = Cutoff(
    (0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 0.99),
    row_cost=0.5,
    mean_rate=0.8,
    guess_cost=0.1,
    pass_cost=0.3,
)
GREEDY = SamplingParams(max_tokens=3, temperature=0.0)
HOT = SamplingParams(max_tokens=3, temperature=1.0, seed=6)


class Uncaptured(CudaModel):
    """The model of a GPU, launched kernel by kernel."""

    captures = False


def jobs() -> list[Job]:
    return [Job([3, 9], GREEDY, 2), Job([5] * 3, HOT, 2, cut=True)]


def test_results_are_those_of_a_runner() -> None:
    few = config(n_routed_experts=4, n_group=2, topk_group=1, num_experts_per_tok=2)
    model = shared_model(few, ops=TritonOps(), dtype=torch.float16)  # the interpreter has bfloat16 wrong
    model.__class__ = Uncaptured
    plain, device = jobs(), jobs()
    serve(make_runner(model, on_device=False), plain, cutoff=CUTOFF)
    serve(make_runner(model), device, cutoff=CUTOFF)  # one step ahead: test_device_step.py
    for a, b in zip(plain, device, strict=True):
        assert a.tokens == b.tokens
        assert same_results(b.results, a.results)
