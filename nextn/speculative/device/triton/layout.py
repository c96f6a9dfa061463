"""Finds the span of each row of a batch. A program is a block of rows. Each program adds up the counts of all
spans itself, so none waits for another.

Shapes: R spans, in LANES lanes, T rows, ROWS of a program.
"""

from __future__ import annotations

import triton
import triton.language as tl

ROWS = 16  # of a program


def lanes_of(requests: int) -> int:
    """Number of lanes, at least the number of requests. Only three values, so that few kernels are
    compiled."""
    return next(n for n in (16, 128, 512) if n >= requests)


def warps_of(lanes: int) -> int:
    """Number of warps of a program that has little work per request."""
    return max(1, lanes // 64)


@triton.jit
def span_of_rows(counts, row, spans, LANES: tl.constexpr):
    """counts: [LANES], rows of each span. row: [ROWS]. Returns the span of each row (`spans` if it belongs to
    none), the first row of this span, and the row after the last of each span."""
    ends = tl.cumsum(counts, axis=0)
    before = (ends[None, :] <= row[:, None]) & (tl.arange(0, LANES) < spans)[None, :]
    span = tl.sum(before.to(tl.int32), axis=1)
    return span, tl.max(tl.where(before, ends[None, :], 0), axis=1), ends


@triton.jit
def store_spans(
    starts, page_at, cu_rows, first_position, pages, ends, spans, rows, LANES: tl.constexpr
):  # fmt: skip
    """Writes the arrays of all spans, and of the padding, which is one more span."""
    r = tl.arange(0, LANES)
    tl.store(starts + r, first_position, mask=r < spans)
    tl.store(page_at + r, pages, mask=r < spans)
    tl.store(cu_rows + 1 + r, ends, mask=r < spans)
    tl.store(starts + spans, 0)
    tl.store(page_at + spans, 0)
    tl.store(cu_rows, 0)
    tl.store(cu_rows + 1 + spans, rows)


@triton.jit
def store_rows(
    positions, slots, span_of, cu_paths, table, row, span, position, pages, rows, PAGE: tl.constexpr
):  # fmt: skip
    """Writes the arrays of rows. Rows of no span have position 0 in page 0. cu_paths: no row has a path."""
    ok = row < rows
    page = tl.load(table + pages + position // PAGE, mask=ok, other=0)
    tl.store(positions + row, position, mask=ok)
    tl.store(slots + row, page * PAGE + position % PAGE, mask=ok)
    tl.store(span_of + row, span, mask=ok)
    tl.store(cu_paths + row, 0, mask=row <= rows)
