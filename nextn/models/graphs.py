"""Captures a model's passes as CUDA graphs, so that one call launches hundreds of small kernels.

There is one graph for each (kind of pass, rows with padding, maximum number of positions that a row sees). It
is captured at its first use. All graphs read and write the same tensors, whose addresses do not change: the
batch's numbers, the hidden states that go in, and those that come out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from nextn.layers.batch import Batch, PackedBatch, packed_size

# Numbers of rows that graphs are captured for. A batch is padded to the next of them. The kernels of a larger
# batch are launched one by one: they run longer than their launch takes.
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Pass = Callable[[Batch, Tensor | None], Tensor]  # hidden states in -> out


def bucket(rows: int) -> int | None:
    """Number of rows with padding; None if there are too many for a graph. bucket(5) == 6."""
    return next((b for b in BUCKETS if b >= rows), None)


def most_positions(longest: int) -> int:
    """`longest`, the number of positions that a row sees, rounded up to 512, 2048, 8192, ... There are few of
    these steps, because a capture delays all running requests. most_positions(513) == 2048."""
    most = 512
    while most < longest:
        most *= 4
    return most


def capture(run: Callable[[], object], memory: Any) -> torch.cuda.CUDAGraph:
    """A graph of the kernels that `run` launches. memory: from `torch.cuda.graph_pool_handle`. Graphs that
    run one after the other can share it."""
    run()  # compiles kernels, which a capture must not do
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # thread_local: another thread may wait for the results of a step during the capture.
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
        run()
    return graph


class Graphs:
    def __init__(self, width: int, dtype: torch.dtype, table: int, device: torch.device) -> None:
        """width: of hidden states. table: maximum length of a row's page table and path together."""
        most = BUCKETS[-1]
        self.numbers = torch.zeros(packed_size(most, 1 + table * most), dtype=torch.int32, device=device)
        self.hidden = torch.zeros(most, width, dtype=dtype, device=device)
        self._outs: dict[Hashable, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def run(self, kind: Hashable, compute: Pass, batch: PackedBatch, hidden: Tensor | None) -> Tensor:
        """compute(batch, hidden) without the padding rows. The next pass of this kind overwrites the result.
        `kind` has to identify everything else that `compute` depends on."""
        # Pinned memory, so that this thread does not wait for the copy.
        self.numbers[: len(batch.packed)].copy_(batch.packed.pin_memory(), non_blocking=True)
        if batch.tokens is not None:
            self.numbers[: batch.rows].copy_(batch.tokens)
        if hidden is not None:
            self.hidden[: batch.rows].copy_(hidden)
        longest = most_positions(batch.longest)
        key = kind, batch.total, longest
        out = self._outs.get(kind)
        if out is None:
            out = self._outs[kind] = torch.empty_like(self.hidden)
        graph = self._graphs.get(key)
        if graph is None:
            on, rows = batch.on(self.numbers, longest), self.hidden[: batch.total]

            def whole() -> None:
                out[: on.rows].copy_(compute(on, rows))

            graph = self._graphs[key] = capture(whole, self._memory)
        graph.replay()
        return out[: batch.rows]
