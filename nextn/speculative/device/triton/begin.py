"""Makes the target's batch: the root and drafts of each request.

Shapes: R requests, T rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.speculative.device.triton.columns import (
    DRAFTS,
    ENDED,
    INPUTS,
    LENGTH,
    LIMIT,
    MOST_DRAFTS,
    ROOT,
    SLOT,
    TOKENS,
    WIDTH,
)  # fmt: skip
from nextn.speculative.device.triton.layout import (
    ROWS,
    lanes_of,
    span_of_rows,
    store_rows,
    store_spans,
    warps_of,
)  # fmt: skip


@triton.jit(do_not_specialize=["requests", "rows", "most_pages"])
def _begin(
    inputs, relay, table, tokens, positions, slots, span_of, starts, page_at, cu_rows, cu_paths, requests,
    rows, most_pages, PAGE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait(PDL)
    let_next_start(PDL)
    r = tl.arange(0, LANES)
    there = r < requests
    slot = tl.load(inputs + r * INPUTS + SLOT, mask=there, other=0)
    most = tl.load(inputs + r * INPUTS + MOST_DRAFTS, mask=there, other=0)
    own = relay + slot * WIDTH
    length = tl.load(own + LENGTH, mask=there, other=0)
    drafts = tl.load(own + DRAFTS, mask=there, other=0)
    room = tl.load(own + LIMIT, mask=there, other=0) - length - 1
    alive = there & (tl.load(own + ENDED, mask=there, other=1) == 0)
    count = tl.where(alive, 1 + tl.maximum(tl.minimum(drafts, tl.minimum(most, room)), 0), 0)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    span, first, ends = span_of_rows(count, row, requests, LANES)
    if tl.program_id(0) == 0:
        store_spans(starts, page_at, cu_rows, length - 1, slot * most_pages, ends, requests, rows, LANES)
    real = (span < requests) & (row < rows)
    after = row - first
    theirs = tl.load(inputs + span * INPUTS + SLOT, mask=real, other=0)
    theirs_at = relay + theirs * WIDTH
    token = tl.load(theirs_at + tl.where(after == 0, ROOT, TOKENS - 1 + after), mask=real, other=0)
    position = tl.where(real, tl.load(theirs_at + LENGTH, mask=real, other=0) - 1 + after, 0)
    tl.store(tokens + row, token, mask=row < rows)
    store_rows(
        positions, slots, span_of, cu_paths, table, row, span, position, theirs * most_pages, rows, PAGE
    )


def begin(inputs: Tensor, rows: Tensor, pages: Tensor, page_size: int, batch: Batch) -> None:
    """batch <- roots and drafts of `inputs` [R, INPUTS], the relay's rows and pages."""
    spans, total, lanes = batch.attention, batch.rows, lanes_of(len(inputs))
    _begin[(triton.cdiv(total + 1, ROWS),)](
        inputs, rows, pages, batch.tokens, batch.positions, batch.slots, spans.span_of, spans.starts,
        spans.page_at, spans.cu_rows, spans.cu_paths, len(inputs), total, pages.shape[1], PAGE=page_size,
        LANES=lanes, ROWS=ROWS, num_warps=warps_of(lanes), **early(inputs.device),
    )  # fmt: skip
