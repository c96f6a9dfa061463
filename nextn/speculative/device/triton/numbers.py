"""`nextn.speculative.device.numbers.StepNumbers` in the kernels of this package."""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.base import Spans, align
from nextn.sampling.row_draws import RowDraws
from nextn.speculative.device import columns
from nextn.speculative.device.numbers import Extend, StepMemory
from nextn.speculative.device.relay import Requests
from nextn.speculative.device.shape import StepShape
from nextn.speculative.device.triton.begin import begin
from nextn.speculative.device.triton.end import end
from nextn.speculative.device.triton.guessed import guessed
from nextn.speculative.device.triton.verify import verify


class TritonNumbers:
    def __init__(self, memory: StepMemory, shape: StepShape) -> None:
        self.memory, self.shape, self.relay = memory, shape, memory.relay
        self.inputs, self.results = memory.inputs[: shape.requests], memory.results[: shape.requests]
        self.wide = align(shape.requests, memory.row_align)  # rows of a pass that has one of each request

    @cached_property
    def _draws(self) -> RowDraws:
        """The draws for each request's next token, before anything is committed."""
        return Requests(self.relay.rows.index_select(0, self.inputs[:, columns.SLOT])).draws

    def begin(self) -> Batch:
        self.batch = self._batch(self.shape.rows, self.shape.requests)
        begin(self.inputs, self.relay.rows, self.relay.pages, self.memory.page_size, self.batch)
        return self.batch

    def draws(self) -> RowDraws:
        spans = self.batch.attention
        draws = self._draws.take(spans.span_of.clamp(max=spans.count - 1))
        return draws._replace(position=spans.positions.long() + 1)

    def verify(self, chosen: Tensor) -> Extend | None:
        shape, memory = self.shape, self.memory
        extend = None
        if shape.drafting.extends:
            batch = self._batch(shape.rows, shape.requests)
            extend = self._extend = Extend(batch, self._empty(shape.rows), self._empty(self.wide))
        self._ended = self._empty(shape.requests)
        verify(
            self.inputs, self.relay.rows, self.relay.pages, memory.page_size, chosen,
            self.batch.attention.cu_rows, self.results, self._ended, extend,
        )  # fmt: skip
        self._going = self._empty(shape.requests)
        self._probabilities = torch.empty_like(self._going, dtype=torch.float32)
        return extend

    def guess_draws(self, step: int) -> RowDraws:
        draws = self._draws
        return draws._replace(position=draws.position + self.results[:, columns.TAKEN] + step)

    def guessed(self, step: int, guess: Tensor, confidence: Tensor | None) -> Batch | None:
        memory = self.memory
        batch = self._one_row_spans() if step + 1 < self.shape.drafting.num_steps else None
        guessed(
            self.inputs, self.results, step, guess, confidence, memory.edges, memory.cutoff,
            self._probabilities, self._going, self._extend.batch, batch, memory.page_size,
        )  # fmt: skip
        return batch

    def end(self) -> None:
        end(self.inputs, self.relay.rows, self.results, self._ended)

    def _empty(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.int32, device=self.inputs.device)

    def _batch(self, rows: int, spans: int) -> Batch:
        """A batch to be filled in. The padding is a span, too."""
        positions, slots, tokens, span_of = (self._empty(rows) for _ in range(4))
        starts, page_at = self._empty(spans + 1), self._empty(spans + 1)
        attention = Spans(
            spans, positions, span_of, starts, page_at, self._empty(spans + 2), self._empty(rows + 1),
            self.relay.pages.view(-1), self.memory.page_size, self.shape.longest,
        )  # fmt: skip
        return Batch(rows, tokens, positions, slots, attention)

    def _one_row_spans(self) -> Batch:
        """The same, for spans with one row each."""
        tokens, positions, slots, page_at = (self._empty(self.wide) for _ in range(4))
        bounds = self._empty(self.wide + 1)
        attention = Spans(
            self.wide, positions, bounds[:-1], positions, page_at, bounds, self._empty(self.wide + 1),
            self.relay.pages.view(-1), self.memory.page_size, self.shape.longest,
        )  # fmt: skip
        return Batch(self.wide, tokens, positions, slots, attention)
