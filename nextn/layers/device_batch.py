"""Lays out a batch on the device, from counts that only the device knows. It makes the arrays of
`nextn.layers.batch.PackedBatch`, in plain tensor code with fixed shapes.

Spans are chains. A span may have no rows. Rows that belong to no span are padding: one more span, in page 0.

Shapes: R spans, T rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.base import Spans


class Paged(NamedTuple):
    """The pages of the requests. table: page tables of all requests, one after another; its first entry is
    page 0. longest: maximum number of positions that a row attends to. dtype: of the arrays for the ops."""

    table: Tensor
    page_size: int
    longest: int
    dtype: torch.dtype

    def slots(self, page_at: Tensor, positions: Tensor) -> Tensor:
        """The slots of these positions. page_at: where the pages of their requests begin in the table."""
        page = self.table.index_select(0, page_at + positions // self.page_size)
        return page.long() * self.page_size + positions % self.page_size


class DeviceLayout(NamedTuple):
    """The layout. All are [T], except first. real: False for padding. span: the span of a row. after: number
    of the span's rows before it. Both are in range for padding, too. first: [R], each span's first row."""

    real: Tensor
    span: Tensor
    after: Tensor
    first: Tensor
    positions: Tensor
    slots: Tensor
    attention: Spans

    def of_rows(self, values: Tensor) -> Tensor:
        """values [R, n], for the first n rows of each span -> values by row, [T], 0 for padding."""
        flat = self.span * values.shape[1] + self.after
        return torch.where(self.real, values.flatten().index_select(0, flat), 0)

    def batch(self, tokens: Tensor) -> Batch:
        """The batch for the layers. tokens: [T]."""
        kind = self.attention.positions.dtype
        return Batch(
            len(tokens), tokens.to(kind), self.positions.to(kind), self.slots.to(kind), self.attention
        )


def lay_out(
    counts: Tensor, starts: Tensor, page_at: Tensor, total: int, most: int, paged: Paged
) -> DeviceLayout:
    """The layout of the spans. counts, starts, page_at: [R] int64: number of rows of each span, its first
    position, where its pages begin in the table. total: T, at least the sum of counts. most: maximum number
    of rows of a span."""
    spans, device = len(counts), counts.device
    ends = counts.cumsum(0)
    row = torch.arange(total, device=device)
    span_of = (row[:, None] >= ends[None]).sum(dim=1)  # spans that end before the row
    none = torch.zeros(1, dtype=torch.int64, device=device)
    bounds = torch.cat((none, ends, none + total))
    real, span = span_of < spans, span_of.clamp(max=spans - 1)
    after = torch.where(real, row - bounds.index_select(0, span_of), 0).clamp(max=most - 1)
    positions = torch.where(real, starts.index_select(0, span) + after, 0)
    at = torch.where(real, page_at.index_select(0, span), 0)
    kind = paged.dtype
    attention = Spans(
        spans, positions.to(kind), span_of.to(kind), torch.cat((starts, none)).to(kind),
        torch.cat((page_at, none)).to(kind), bounds.to(kind),
        torch.zeros(total + 1, dtype=kind, device=device), paged.table.to(kind), paged.page_size,
        paged.longest,
    )  # fmt: skip
    return DeviceLayout(real, span, after, bounds[:spans], positions, paged.slots(at, positions), attention)


def one_row_spans(active: Tensor, positions: Tensor, page_at: Tensor, tokens: Tensor, paged: Paged) -> Batch:
    """A batch of R spans with one row each. Rows that are not `active` are in page 0."""
    kind = paged.dtype
    positions, at = torch.where(active, positions, 0), torch.where(active, page_at, 0)
    bounds = torch.arange(len(active) + 1, device=active.device, dtype=kind)
    place = positions.to(kind)
    attention = Spans(
        len(active), place, bounds[:-1], place, at.to(kind), bounds, torch.zeros_like(bounds),
        paged.table.to(kind), paged.page_size, paged.longest,
    )  # fmt: skip
    tokens = torch.where(active, tokens, 0)
    return Batch(len(active), tokens.to(kind), place, paged.slots(at, positions).to(kind), attention)
