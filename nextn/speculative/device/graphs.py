"""Steps on the device as CUDA graphs: one graph a step, captured once for each shape.

Graphs of all shapes share their memory: they run one after another, and what lasts lies outside of it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

import torch

from nextn.speculative.device.shape import StepShape
from nextn.speculative.device.step import DeviceStep

OFTEN = 256  # steps of a shape: they pay a capture, which takes as long as some 50 to 100 of them

log = logging.getLogger("nextn.engine")


class StepPasses(Protocol):
    """How the step of a shape is run."""

    def prepare(self, shape: StepShape) -> StepShape:
        """The shape that a step of this one is to run in. Called before the step's inputs are sent; may write
        over them."""

    def run(self, shape: StepShape) -> None:
        """The step, once its inputs are there, in a shape that `prepare` has given."""


class OneByOne:
    """Kernel by kernel."""

    def __init__(self, step: DeviceStep) -> None:
        self.run = step.run

    def prepare(self, shape: StepShape) -> StepShape:
        return shape


class StepGraphs:
    """A capture holds all requests up. So a step of a shape that has no graph runs in that of another which
    covers it, if there is one, and its shape gets a graph when it has come OFTEN times."""

    def __init__(self, step: DeviceStep) -> None:
        self._step = step
        # None: this step cannot be captured and is launched kernel by kernel.
        self._graphs: dict[StepShape, torch.cuda.CUDAGraph | None] = {}
        self._memory = torch.cuda.graph_pool_handle()
        self._came: Counter[StepShape] = Counter()  # of those without a graph
        self._covering: dict[StepShape, StepShape] = {}

    def capture(self, shapes: Iterable[StepShape], captured: Callable[[], None]) -> None:
        """captured: called after each."""
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
        """A graph for this shape."""
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
        self._step.sent.whole.zero_()  # nobody's requests: what runs here changes nothing
        self._step.run(shape)  # compiles kernels, which a capture must not do
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        # Another thread may wait for the results of steps meanwhile.
        with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
            self._step.run(shape)
        return graph


def smallest_covering(shape: StepShape, others: Iterable[StepShape]) -> StepShape | None:
    """Of the others, the smallest in which steps of `shape` may run."""
    covering = [other for other in others if other.covers(shape)]
    return min(covering, default=None, key=lambda s: (s.rows, s.drafting, s.requests, s.longest))


def graph_bytes(step: DeviceStep, shape: StepShape) -> int:
    """Memory of the device that the graph of a shape takes; it is given back."""
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
