"""The host reads nothing while a step's kernels are launched, so that a CUDA graph can hold them. Tensors of
the device `meta` have no numbers: what would read one raises. What a step gives: tests/unit/engine."""

from __future__ import annotations

import pytest
import torch
from support.device_steps import config
from support.shape_ops import ShapeOps
from support.sharing import shared_model

from nextn.kvcache.pool import KVPool
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep

REQUESTS = 4


def step_without_numbers(**options):
    model = shared_model(config(), ops=ShapeOps(), device="meta", **options)
    pool = KVPool(3, 9, 16, model.cache_layout, model.dtype, model.device)
    return DeviceStep(model, pool, Relay(REQUESTS, 4, model.device), REQUESTS)


@pytest.mark.parametrize("tokens", [None, [1, 5, 7]], ids=["all tokens", "some"])
@pytest.mark.parametrize("choosing", Choosing)
@pytest.mark.parametrize(
    "drafting", [Drafting(), Drafting(0, True), Drafting(3, True), Drafting(2, True, gated=True)]
)
@torch.inference_mode()
def test_the_host_reads_nothing(drafting, choosing, tokens):
    step = step_without_numbers(draft_tokens=tokens)
    for requests, rows in ((1, 8), (REQUESTS, 8), (REQUESTS, 64)):
        step.run(StepShape(requests, rows, drafting, choosing, 512))


@torch.inference_mode()
def test_what_reads_raises():
    class Reads(ShapeOps):
        def rms_norm(self, x, weight, eps):
            x.sum().item()
            return super().rms_norm(x, weight, eps)

    step = step_without_numbers()
    step.model.ops = Reads()
    for layer in step.model.layers:
        layer.ops = step.model.ops
        layer.attention.ops = step.model.ops
    with pytest.raises((RuntimeError, NotImplementedError)):
        step.run(StepShape(1, 8, Drafting(), Choosing.GREEDY, 512))
