"""Steps on the device as CUDA graphs: one graph per step, captured once for each shape.

The graphs of all shapes share memory, because they run one after the other. Data that must outlive a step is
outside of this memory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from nextn.models.graphs import capture
from nextn.speculative.device.shape import StepShape
from nextn.speculative.device.step import DeviceStep

OFTEN = 256  # steps of a shape after which a capture pays; it takes as long as some 50 to 100 steps

log = logging.getLogger("nextn.engine")


class StepPasses(Protocol):
    """Runs steps of given shapes."""

    def prepare(self, shape: StepShape) -> StepShape:
        """The shape in which a step of `shape` will run. Called before the step's inputs are sent, because it
        may overwrite them."""

    def run(self, shape: StepShape) -> None:
        """Runs the step, after its inputs have been sent, in a shape that `prepare` returned."""


class OneByOne:
    """Launches steps kernel by kernel."""

    def __init__(self, step: DeviceStep) -> None:
        self.run = step.run

    def prepare(self, shape: StepShape) -> StepShape:
        return shape


class StepGraphs:
    """Runs steps as graphs. A capture delays all requests. So a step whose shape has no graph runs in the
    graph of a shape that covers it, if there is one. The shape gets its own graph when it has come OFTEN
    times."""

    def __init__(self, step: DeviceStep) -> None:
        self._step = step
        # None: steps of this shape cannot be captured and are launched kernel by kernel.
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph | None] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._came: Counter[StepShape] = Counter()  # how often shapes without a graph came
        self._covering: dict[StepShape, StepShape] = {}

    def capture(self, shapes: Iterable[StepShape], captured: Callable[[], None]) -> None:
        """Captures graphs of these shapes. captured: called after each."""
        for shape in shapes:
            self.add(shape)
            captured()

    def prepare(self, shape: StepShape) -> StepShape:
        if shape in self._graphs:
            return shape
        self._came[shape] += 1
        if self._came[shape] <= OFTEN:
            if (other := self._covering.get(shape)) is None:
                other = smallest_covering(shape, self._graphs)
            if other is not None:
                self._covering[shape] = other
                return other
        del self._came[shape]
        self._covering.clear()
        self.add(shape)
        return shape

    @torch.inference_mode()
    def add(self, shape: StepShape) -> None:
        """Captures a graph for this shape."""
        try:
            self._graphs[shape] = self._capture(shape)
        except Exception as e:
            log.warning("a step of %s cannot be captured, it is launched kernel by kernel: %s", shape, e)
            self._graphs[shape] = None

    def run(self, shape: StepShape) -> None:
        graph = self._graphs[shape]
        if graph is None:
            self._step.run(shape)
        else:
            graph.replay()

    def _capture(self, shape: StepShape) -> torch.cuda.CUDAGraph:
        self._step.sent.whole.zero_()  # no requests: this run changes nothing
        return capture(lambda: self._step.run(shape), self._memory)


def smallest_covering(shape: StepShape, others: Iterable[StepShape]) -> StepShape | None:
    """The smallest of `others` in which steps of `shape` can run."""
    covering = [other for other in others if other.covers(shape)]
    return min(covering, default=None, key=lambda s: (s.rows, s.drafting, s.requests, s.longest))


def graph_bytes(step: DeviceStep, shape: StepShape) -> int:
    """Device memory that the graph of a shape takes. Captures one and frees it again."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before, _ = torch.cuda.mem_get_info(step.inputs.device)
    graphs = StepGraphs(step)
    graphs.add(shape)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    after, _ = torch.cuda.mem_get_info(step.inputs.device)
    del graphs
    torch.cuda.empty_cache()
    return max(0, before - after)
