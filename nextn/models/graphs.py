"""A model's passes as CUDA graphs: hundreds of small kernels, launched by one call.

A pass is captured for each (its kind, rows with padding, longest span of keys) when that is first asked for.
What it reads and writes are tensors that stay where they are: the batch's numbers, hidden states in, and out.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from nextn.layers.batch import Batch, PackedBatch, packed_size

# Rows that graphs are made for; a batch is padded to the next of these. Larger ones are launched kernel by
# kernel: their kernels take longer than launching them.
BUCKETS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)

Pass = Callable[[Batch, Tensor | None], Tensor]  # hidden states in -> out


def bucket(rows: int) -> int | None:
    """Rows with padding. bucket(5) == 6, bucket(513) is None."""
    return next((b for b in BUCKETS if b >= rows), None)


def most_positions(longest: int) -> int:
    """What a graph is captured for whose rows see at most so many positions. Few graphs differ in it: a
    capture amid requests holds them all up. most_positions(513) == 2048."""
    most = 512
    while most < longest:
        most *= 4
    return most


def capture(run: Callable[[], object], memory: Any) -> torch.cuda.CUDAGraph:
    """A graph of what `run` launches. memory: of `torch.cuda.graph_pool_handle`. Graphs that run one after
    the other can share it."""
    run()  # compiles kernels, which a capture must not do
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    # Another thread may wait for what a step has left meanwhile.
    with torch.cuda.graph(graph, pool=memory, capture_error_mode="thread_local"):
        run()
    return graph


class Graphs:
    def __init__(self, width: int, dtype: torch.dtype, table: int, device: torch.device) -> None:
        """width: of hidden states. table: numbers that a row's page table and path take at most."""
        most = BUCKETS[-1]
        self.numbers = torch.zeros(packed_size(most, 1 + table * most), dtype=torch.int32, device=device)
        self.hidden = torch.zeros(most, width, dtype=dtype, device=device)
        self._outs: dict[Hashable, Tensor] = {}
        self._graphs: dict[Hashable, torch.cuda.CUDAGraph] = {}
        self._memory = torch.cuda.graph_pool_handle()

    def run(self, kind: Hashable, compute: Pass, batch: PackedBatch, hidden: Tensor | None) -> Tensor:
        """compute(batch, hidden), the rows that are not padding; written over by the next pass of its
        kind. `kind` says all that `compute` depends on besides."""
        # Pinned, so that the copy waits for its turn on the device while this thread goes on.
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
