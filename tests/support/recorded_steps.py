"""CUDA graphs, simulated on the CPU, and ops like a device's.

A recording contains the kernels of a step and the memory that they read and write. A replay runs the same
kernels on the same memory. It leaves out the host's work in between. So a number that the host has read, or a
tensor that it has made, keeps the value it had in the recording.

FixedOps are ops in tensor code with fixed shapes, like a device's kernels. The ops in plain torch read
numbers on the host.
"""

from __future__ import annotations

from typing import Any

import torch
from support.sharing import ExactReference
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nextn.ops.base import Columns, Spans
from nextn.ops.reference import _swiglu
from nextn.speculative.device.shape import StepShape
from nextn.speculative.device.step import DeviceStep

MOST = 64  # maximum of positions that a row sees
READS = ("aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select", "aten::is_nonzero")


class FixedOps(ExactReference):
    """Ops in which every sum has the same number of elements in all batches."""

    def mla_attention(self, q: Tensor, cache: Tensor, spans: Spans, rank: int) -> Tensor:
        at = torch.arange(MOST, device=q.device)
        first = spans.page_at[spans.span_of.long()].long()
        place = (first[:, None] + at // spans.page_size).clamp(max=len(spans.table) - 1)
        slots = spans.table[place].long() * spans.page_size + at % spans.page_size
        sees = at <= spans.positions[:, None]
        keys = cache[torch.where(sees, slots, slots[:, :1])]  # [T, MOST, D]
        scores = (q[:, :, None] * keys[:, None]).contiguous().sum(-1)
        p = scores.masked_fill(~sees[:, None], float("-inf")).softmax(-1)
        return (p[..., None] * keys[:, None, :, :rank]).transpose(2, 3).contiguous().sum(-1)

    def write_latent(self, cache: Tensor, slots: Tensor, *rest: Any) -> None:
        super().write_latent(cache, slots.long(), *rest)

    def dispatch(self, ids: Tensor, experts: int) -> Any:
        return ids

    def experts(
        self, x: Tensor, runs: Any, gate_up: Tensor, down: Tensor, *, inner: Columns | None = None
    ) -> Tensor:
        hidden = (x[: len(runs), None, None] * gate_up[runs]).contiguous().sum(-1)
        hidden = _swiglu(hidden.flatten(0, 1), inner).view(*hidden.shape[:2], -1)
        return (hidden[:, :, None] * down[runs]).contiguous().sum(-1)


class Recording(TorchDispatchMode):
    """Records kernels, and the tensors that they read and write."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[tuple[Any, Any, Any, list[tuple[int, Tensor]]]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        assert func._schema.name not in READS, f"the host waits in {func}"
        out = func(*args, **kwargs)
        known = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)}
        new = [
            (n, t)
            for n, t in enumerate(tree_leaves(out))
            if isinstance(t, Tensor) and t.untyped_storage().data_ptr() not in known
        ]
        self.kernels.append((func, args, kwargs, new))
        return out

    def replay(self) -> None:
        for func, args, kwargs, new in self.kernels:
            found = tree_leaves(func(*args, **kwargs))
            for n, tensor in new:
                tensor.copy_(found[n])


class RecordedSteps:
    """Like `nextn.speculative.device.graphs.StepGraphs`, with recordings."""

    def __init__(self, step: DeviceStep) -> None:
        self.step = step
        self.recordings: dict[StepShape, Recording] = {}

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> StepShape:
        if shape not in self.recordings:
            self.step.sent.whole.zero_()
            self.step.run(shape)
            self.recordings[shape] = recording = Recording()
            before = [t.clone() for t in (self.step.relay.rows, self.step.relay.pages)]
            with recording:
                self.step.run(shape)
            assert self.step.relay.rows.equal(before[0])  # rows without a request change nothing
            assert self.step.relay.pages.equal(before[1])
        return shape

    @torch.inference_mode()
    def run(self, shape: StepShape) -> None:
        self.recordings[shape].replay()
