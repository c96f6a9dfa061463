"""The host reads nothing while a step's kernels are launched, so that a CUDA graph can hold them. Tensors of
the device `meta` have no numbers: what would read one raises. What a step gives: tests/unit/engine."""

from __future__ import annotations

import sys
from collections import Counter

import pytest
import torch
from support.device_steps import config
from support.shape_ops import ShapeOps
from support.sharing import shared_model
from torch.utils._python_dispatch import TorchDispatchMode

from nextn.kvcache.pool import KVPool
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep

REQUESTS = 4


def step_without_numbers(ops=None, **options):
    model = shared_model(config(), ops=ops or ShapeOps(), device="meta", **options)
    pool = KVPool(3, 9, 16, model.cache_layout, model.dtype, model.device)
    return DeviceStep(model, pool, Relay(REQUESTS, 4, model.device), REQUESTS)


@pytest.mark.parametrize("tokens", [None, [1, 5, 7]], ids=["all tokens", "some"])
@pytest.mark.parametrize("choosing", Choosing)
@pytest.mark.parametrize(
    "drafting", [Drafting(), Drafting(0, True), Drafting(3, True), Drafting(2, True, cut=True)]
)
@torch.inference_mode()
def test_the_host_reads_nothing(drafting, choosing, tokens):
    step = step_without_numbers(draft_tokens=tokens)
    for requests, rows in ((1, 8), (REQUESTS, 8), (REQUESTS, 64)):
        step.run(StepShape(requests, rows, drafting, choosing, 512))


class Kernels(TorchDispatchMode):
    """Torch's, but for those that only make a tensor or a view of one."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        schema = func._schema
        views = any(a.alias_info is not None and not a.alias_info.is_write for a in schema.arguments)
        if not views and not schema.name.startswith(("aten::empty", "aten::new_empty")):
            self.names.append(schema.name)
        return func(*args, **(kwargs or {}))


@pytest.mark.skipif(sys.platform != "linux", reason="no triton")
@torch.inference_mode()
def test_the_kernels_of_greedy_steps_are_triton_s(monkeypatch):
    """Each of torch's would take as long as a small one of a layer."""
    from triton.runtime.interpreter import GridExecutor

    from nextn.ops.triton.ops import TritonOps

    launched = []
    monkeypatch.setattr(GridExecutor, "__call__", lambda self, *_, **__: launched.append(self.fn.__name__))
    step = step_without_numbers(TritonOps())
    own = {"_embed": 1, "_begin": 1, "_verify": 1, "_end": 1}
    for drafting, more, kernels in (
        (Drafting(), {}, ["aten::index_copy_"]),
        (
            Drafting(3, True, cut=True),
            {"_embed_beside": 3, "_guessed": 3},
            ["aten::index_copy_", "aten::index_select"],
        ),
    ):
        launched.clear()
        with Kernels() as torchs:
            step.run(StepShape(1, 4, drafting, Choosing.GREEDY, 512))
        assert torchs.names == kernels
        assert {name: n for name, n in Counter(launched).items() if name in own | more} == own | more


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
