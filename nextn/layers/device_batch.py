"""A batch laid out on the device, from counts that only the device knows: the arrays of
`nextn.layers.batch.PackedBatch`, in plain tensor code of fixed shapes.

Spans are chains. They may have no rows; those rows that no span takes are padding, one more span in page 0.

Shapes: R spans, T rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.base import Spans


class Paged(NamedTuple):
    """Where requests keep their pages. table: of all requests, one after another; its first entry is page 0.
    longest: no row sees more positions. dtype: of the arrays that ops get."""

    table: Tensor
    page_size: int
    longest: int
    dtype: torch.dtype

    def slots(self, page_at: Tensor, positions: Tensor) -> Tensor:
        """The slots of these positions, each of the request whose pages begin at `page_at`."""
        page = self.table.index_select(0, page_at + positions // self.page_size)
        return page.long() * self.page_size + positions % self.page_size


class Laid(NamedTuple):
    """[T] of each: real: is it none of the padding? span: that a row is of; after: how many rows of the span
    are before it. Both are within bounds for padding, too. first: [R], each span's first row."""

    real: Tensor
    span: Tensor
    after: Tensor
    first: Tensor
    positions: Tensor
    slots: Tensor
    attention: Spans

    def of_rows(self, values: Tensor) -> Tensor:
        """values [R, n], those of each span's first rows in order -> [T], 0 for padding."""
        flat = self.span * values.shape[1] + self.after
        return torch.where(self.real, values.flatten().index_select(0, flat), 0)

    def batch(self, tokens: Tensor) -> Batch:
        """tokens: [T]."""
        kind = self.attention.positions.dtype
        return Batch(
            len(tokens), tokens.to(kind), self.positions.to(kind), self.slots.to(kind), self.attention
        )


def laid_out(counts: Tensor, starts: Tensor, page_at: Tensor, total: int, most: int, paged: Paged) -> Laid:
    """counts, starts, page_at: [R] int64: rows of each span, its first position, where its pages begin in the
    table. total: T, at least as many as the counts add up to. most: no span has more rows."""
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
    return Laid(real, span, after, bounds[:spans], positions, paged.slots(at, positions), attention)


def rows_apart(active: Tensor, positions: Tensor, page_at: Tensor, tokens: Tensor, paged: Paged) -> Batch:
    """A batch of R spans of a row each; rows that are not `active` lie in page 0."""
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
