"""Computes what a step commits for each request, and the batch of the draft layer's pass over it.

Program n has two tasks: it writes the result of request n, and the rows n * ROWS, ... of the pass. For the
second task it computes by itself what every request commits, which takes no longer than another launch.

Shapes: R requests, T rows.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.speculative.device.triton.columns import (
    BINS,
    DEPTH,
    DRAFT_FROM,
    END_IDS,
    ENDS,
    FAILED,
    GUESSES,
    INPUTS,
    KEPT,
    LENGTH,
    LIMIT,
    MADE,
    MAX_DRAFTS,
    NUM_STEPS,
    OVER,
    RESULT_WIDTH,
    RESULTS,
    SLOT,
    STARTED,
    TAKEN,
    TOKENS,
    VERIFIED,
    WIDTH,
)  # fmt: skip
from nextn.speculative.device.triton.layout import ROWS, lanes_of, span_of_rows, store_rows, store_spans


@triton.jit
def _taken(chosen, drafts, count, there, D: tl.constexpr):
    """Number of tokens to commit. chosen, drafts: [N] pointers to each request's first. count: number of
    drafts. there: whether the request is alive."""
    d = tl.arange(0, D)[None, :]
    has = (d < count[:, None]) & there[:, None]
    own = tl.load(chosen[:, None] + d, mask=has, other=0)
    holds = has & (own == tl.load(drafts[:, None] + d, mask=has, other=0))
    accepted = tl.minimum(tl.min(tl.where(holds, D, d), axis=1), count)
    final = tl.load(chosen + accepted, mask=there, other=0)
    return tl.where(there, accepted + (final >= 0).to(tl.int32), 0)


@triton.jit
def _settle(
    n, inputs, relay, chosen, cu_rows, results, ended, EXTENDS: tl.constexpr, D: tl.constexpr,
    T: tl.constexpr, E: tl.constexpr,
):  # fmt: skip
    """Writes the results of one request, without a draft yet. The tokens that it commits are the target's
    choices, because accepted drafts are equal to them."""
    slot = tl.load(inputs + n * INPUTS + SLOT)
    own, line = relay + slot * WIDTH, results + n * RESULT_WIDTH
    length, limit = tl.load(own + LENGTH), tl.load(own + LIMIT)
    first = tl.load(cu_rows + n)
    verified = tl.load(cu_rows + n + 1) - first - 1
    alive = verified >= 0
    verified = tl.maximum(verified, 0)
    one = tl.zeros((1,), dtype=tl.int32)
    taken = _taken(chosen + first + one, own + TOKENS + one, verified + one, alive & (one == 0), D)
    taken = tl.max(taken, axis=0)
    t, e = tl.arange(0, T), tl.arange(0, E)
    tokens = tl.load(chosen + first + t, mask=t < taken, other=0).to(tl.int32)
    end_ids = tl.load(own + END_IDS + e, mask=e < ENDS, other=-1)
    stop = (tokens[:, None] == end_ids[None, :]) & ((t < taken)[:, None] & (e < ENDS)[None, :])
    stops = tl.max(tl.max(stop.to(tl.int32), axis=1), axis=0) > 0
    failed = alive & (taken == 0) & (verified == 0)
    over = (alive == 0) | failed | stops | (length + taken >= limit)
    depth = 0
    if EXTENDS:
        left = tl.minimum(tl.load(inputs + n * INPUTS + NUM_STEPS), limit - length - taken - 1)
        depth = tl.where((over == 0) & (taken > 0), tl.maximum(left, 0), 0)
    tl.store(ended + n, over.to(tl.int32))
    tl.store(line + STARTED, length - 1)
    tl.store(line + VERIFIED, verified)
    tl.store(line + TAKEN, taken)
    tl.store(line + KEPT, 0)
    tl.store(line + MADE, 0)
    tl.store(line + DEPTH, depth)
    tl.store(line + FAILED, failed.to(tl.int32))
    tl.store(line + OVER, (alive == 0).to(tl.int32))
    tl.store(line + RESULTS + t, tokens, mask=t <= MAX_DRAFTS)
    tl.store(line + GUESSES + t, tl.zeros_like(tokens), mask=t < MAX_DRAFTS)
    tl.store(line + BINS + t, tl.zeros_like(tokens), mask=t < MAX_DRAFTS)


@triton.jit
def _lay_out(
    n, inputs, relay, table, chosen, cu_rows, tokens, positions, slots, span_of, starts, page_at, ends_at,
    cu_paths, source, last, requests, wide, rows, most_pages, PAGE: tl.constexpr, LANES: tl.constexpr,
    ROWS: tl.constexpr, D: tl.constexpr,
):  # fmt: skip
    """Writes rows of the pass, and in program 0 also the arrays of spans. Positions and pages are counted
    from the first position that the drafter attends to."""
    r = tl.arange(0, LANES)
    there = r < requests
    slot = tl.load(inputs + r * INPUTS + SLOT, mask=there, other=0)
    sees = tl.load(inputs + r * INPUTS + NUM_STEPS, mask=there, other=-1) >= 0
    first = tl.load(cu_rows + r, mask=there, other=0)
    verified = tl.load(cu_rows + r + 1, mask=there, other=0) - first - 1
    own = relay + slot * WIDTH
    seen = _taken(chosen + first, own + TOKENS, verified, there & sees & (verified >= 0), D)
    row = n * ROWS + tl.arange(0, ROWS)
    span, begins, ends = span_of_rows(seen, row, requests, LANES)
    if n == 0:
        begin_at = tl.load(inputs + r * INPUTS + DRAFT_FROM, mask=there, other=0)
        start = tl.load(own + LENGTH, mask=there, other=0) - 1 - begin_at
        pages = slot * most_pages + begin_at // PAGE
        store_spans(starts, page_at, ends_at, start, pages, ends, requests, rows, LANES)
        tl.store(last + r, tl.where(there, tl.maximum(ends - 1, 0), 0), mask=r < wide)
    real = (span < requests) & (row < rows)
    after = row - begins
    theirs = tl.load(inputs + span * INPUTS + SLOT, mask=real, other=0)
    draft_from = tl.load(inputs + span * INPUTS + DRAFT_FROM, mask=real, other=0)
    position = tl.load(relay + theirs * WIDTH + LENGTH, mask=real, other=0) - 1 - draft_from + after
    at = tl.where(real, tl.load(cu_rows + span, mask=real, other=0) + after, 0)
    tl.store(source + row, at, mask=row < rows)
    tl.store(tokens + row, tl.load(chosen + at, mask=real, other=0).to(tl.int32), mask=row < rows)
    store_rows(
        positions, slots, span_of, cu_paths, table, row, span, tl.where(real, position, 0),
        theirs * most_pages + draft_from // PAGE, rows, PAGE,
    )  # fmt: skip


@triton.jit(do_not_specialize=["requests", "wide", "rows", "most_pages"])
def _verify(
    inputs, relay, table, chosen, cu_rows, results, ended, tokens, positions, slots, span_of, starts, page_at,
    ends_at, cu_paths, source, last, requests, wide, rows, most_pages, EXTENDS: tl.constexpr,
    PAGE: tl.constexpr, LANES: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, T: tl.constexpr,
    E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    wait(PDL)
    let_next_start(PDL)
    n = tl.program_id(0)
    if n < requests:
        _settle(n, inputs, relay, chosen, cu_rows, results, ended, EXTENDS, D, T, E)
    if EXTENDS:  # noqa: SIM102 - a constant
        if n * ROWS <= rows:
            _lay_out(
                n, inputs, relay, table, chosen, cu_rows, tokens, positions, slots, span_of, starts, page_at,
                ends_at, cu_paths, source, last, requests, wide, rows, most_pages, PAGE, LANES, ROWS, D,
            )  # fmt: skip


def verify(
    inputs: Tensor, rows: Tensor, pages: Tensor, page_size: int, chosen: Tensor, cu_rows: Tensor,
    results: Tensor, ended: Tensor, extend: tuple[Batch, Tensor, Tensor] | None,
) -> None:  # fmt: skip
    """results [R, RESULT_WIDTH], ended [R] <- what is committed of chosen [T] int64, the choices of the batch
    whose spans begin at cu_rows. extend <- its batch, source [T] and last [R or more], if there is one."""
    assert chosen.is_contiguous()
    requests, total = len(inputs), len(chosen)
    programs, lanes = requests, lanes_of(1)  # without a pass, these do nothing
    batch_to: tuple[Tensor, ...] = (chosen,) * 10
    if extend is not None:
        batch, source, last = extend
        spans = batch.attention
        programs, lanes = max(requests, triton.cdiv(total + 1, ROWS)), lanes_of(requests)
        batch_to = (
            batch.tokens, batch.positions, batch.slots, spans.span_of, spans.starts, spans.page_at,
            spans.cu_rows, spans.cu_paths, source, last,
        )  # fmt: skip
    _verify[(programs,)](
        inputs, rows, pages, chosen, cu_rows, results, ended, *batch_to, requests, len(batch_to[-1]), total,
        pages.shape[1], EXTENDS=extend is not None, PAGE=page_size, LANES=lanes, ROWS=ROWS,
        D=triton.next_power_of_2(MAX_DRAFTS.value), T=triton.next_power_of_2(1 + MAX_DRAFTS.value),
        E=triton.next_power_of_2(ENDS.value), num_warps=8 if lanes > 128 else 4, **early(inputs.device),
    )  # fmt: skip
