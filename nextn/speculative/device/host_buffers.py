"""Host memory for the inputs of a step, which are copied to the device, and for its results, copied back.

The device copies while the host continues. During a copy, the host must not write its source or read its
target. So each step has its own buffers until its results have arrived. By then its copies have ended,
because the device works in order. The number of buffers is the largest number of steps that were launched at
a time."""

from __future__ import annotations

import torch
from torch import Tensor

from nextn.speculative.device.sent import Sent
from nextn.speculative.device.step import DeviceStep


class HostBuffers:
    """The buffers of one step; pinned if the device is a GPU. cutoff, inputs, places, pages: to be sent, see
    `Sent`. All but the first are memoryviews of one dimension, because arrays can be copied into these much
    faster. results: as those of `DeviceStep`. more: [n] int64, data that only some steps send."""

    def __init__(self, step: DeviceStep) -> None:
        self._step, self._pinned = step, step.inputs.is_cuda
        requests, width = step.inputs.shape
        self._sent = Sent(requests, width, torch.device("cpu"), self._pinned)
        self._results = self._empty(tuple(step.results.shape), torch.int32)
        self._copies: dict[int, tuple[Tensor, Tensor]] = {}  # slicing takes longer than copying
        self._there = torch.cuda.Event() if self._pinned else None
        self.more = self._empty((0,), torch.int64)
        # Views of the same memory.
        self.cutoff, self.results = self._sent.cutoff.numpy(), self._results.numpy()
        self.inputs, self.pages = self._sent.inputs.flatten().numpy().data, self._sent.pages.numpy().data
        self.places = self._sent.places.numpy().data.cast("B").cast("q")

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=self._pinned)

    def room(self, count: int) -> Tensor:
        """The first `count` numbers of `more`, to be filled before they are sent."""
        if count > len(self.more):
            self.more = self._empty((1 << (count - 1).bit_length(),), torch.int64)
        return self.more[:count]

    def send(self) -> None:
        """Begins to copy the inputs to the device."""
        self._step.sent.whole.copy_(self._sent.whole, non_blocking=True)

    def fetch(self, requests: int) -> None:
        """Begins to copy the results of `requests` requests, after the step has run."""
        if requests not in self._copies:
            self._copies[requests] = self._results[:requests], self._step.results[:requests]
        to, results = self._copies[requests]
        to.copy_(results, non_blocking=True)
        if self._there is not None:
            self._there.record()

    def wait(self) -> None:
        """Waits until the results have arrived."""
        if self._there is not None:
            self._there.synchronize()


class FreeBuffers:
    """The buffers that no step uses."""

    def __init__(self, step: DeviceStep) -> None:
        self._step = step
        self._free: list[HostBuffers] = []

    def take(self) -> HostBuffers:
        return self._free.pop() if self._free else HostBuffers(self._step)

    def give(self, buffers: HostBuffers) -> None:
        """Returns the buffers of a step whose results have arrived and have been read."""
        assert all(each is not buffers for each in self._free)
        self._free.append(buffers)
