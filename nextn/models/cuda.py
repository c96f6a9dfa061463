"""The model on CUDA, for all families: `nextn.models.torch_model` with the Triton ops. Passes over few rows
are captured as CUDA graphs. A row has the same bits in a graph and outside."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

from torch import Tensor

from nextn.distributed.group import Alone
from nextn.distributed.torch_group import TorchGroup
from nextn.draft import MAX_DRAFTS, MAX_TOPK
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Batch, PackedBatch, Span
from nextn.models.graphs import Graphs, Pass, bucket
from nextn.models.torch_model import TorchModel


class CudaModel(TorchModel):
    row_align = 1
    eager = False  # True: no graphs

    _graphs: Graphs | None = None
    _pool: KVPool | None = None

    @property
    def captures(self) -> bool:
        """Whether passes are captured. A graph cannot hold collectives through the host, nor a world's."""
        group = self.group
        if self.eager or self.world is not None:
            return False
        return isinstance(group, Alone) or (isinstance(group, TorchGroup) and group.backend == "nccl")

    def drop_graphs(self) -> None:
        """Frees the graphs. They contain NCCL collectives, and NCCL does not end while they exist."""
        self._graphs = self._pool = None

    def batch(self, spans: Sequence[Span], page_size: int) -> Any:
        rows = sum(len(span.tokens) for span in spans)
        return PackedBatch(spans, page_size, bucket(rows) if self.captures else None)

    def forward(self, batch: Any, pool: KVPool) -> Tensor:
        def compute(batch: Batch, _: Tensor | None) -> Tensor:
            return TorchModel.forward(self, batch, pool)

        return self._run("forward", compute, batch, None, pool)

    def draft(self, batch: Any, hidden: Tensor, pool: KVPool, layer: int = 0) -> Tensor:
        def compute(batch: Batch, hidden: Tensor | None) -> Tensor:
            assert hidden is not None
            return TorchModel.draft(self, batch, hidden, pool, layer)

        return self._run(("draft", layer), compute, batch, hidden, pool)

    def best_draft(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        if self.draft_rows is not None or self.group.size > 1:
            return self.ops.best_token(self.draft_logits(hidden))
        tokens, confidence = self.ops.best_of_product(hidden, self.head)
        return tokens.clamp(min=0), confidence  # a row without a choice gets token 0: the id must exist

    def _run(
        self, kind: Hashable, compute: Pass, batch: PackedBatch, hidden: Tensor | None, pool: KVPool
    ) -> Tensor:
        if bucket(batch.rows) is None or not self.captures:
            numbers = batch.packed.to(self.device)
            if batch.tokens is not None:
                numbers[: batch.rows] = batch.tokens
            return compute(batch.on(numbers), hidden)
        if pool is not self._pool:  # graphs contain the pool's address
            self._pool = pool
            slots = self.config.max_position_embeddings + MAX_TOPK * MAX_DRAFTS  # a request and its tree
            table = -(-slots // pool.page_size) + MAX_DRAFTS + 1
            self._graphs = Graphs(self.config.hidden_size, self.dtype, table, self.device)
        assert self._graphs is not None
        return self._graphs.run(kind, compute, batch, hidden)
