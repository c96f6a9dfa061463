"""After a guess of each chain: the cutoff decides which chains continue, and the next pass is prepared. It is
one program, because the cutoff adds up the gains of all chains.

The arithmetic is that of `nextn.speculative.device.cutoff.DeviceCutChains`: f32 without fused multiply-adds,
and a sum in f64, whose order matters only in the last bits.

Shapes: R requests, in LANES lanes.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from nextn.layers.batch import Batch
from nextn.ops.triton.early import early, let_next_start, wait
from nextn.speculative.device.triton.columns import (
    BINS,
    CUT,
    DEPTH,
    GUESSES,
    INPUTS,
    KEPT,
    MADE,
    NO_GUESS,
    RESULT_WIDTH,
    TAKEN,
)  # fmt: skip
from nextn.speculative.device.triton.layout import lanes_of, warps_of


@triton.jit
def _cut_chains(
    line, bins, new, cut, active, depth, probabilities, going, cutoff, r, there, step
):  # fmt: skip
    """The number of guesses of each chain that are worth verifying."""
    chains = new & cut & (tl.load(going + r, mask=there & (step > 0), other=1) > 0)
    probability = tl.load(probabilities + r, mask=there & (step > 0), other=1.0)
    probability = tl.where(chains, probability * tl.load(cutoff + bins), probability)
    worth = chains & (probability >= tl.load(cutoff + NO_GUESS))
    gains = probability * tl.load(cutoff + NO_GUESS + 1) - tl.load(cutoff + NO_GUESS + 2)
    on = worth & (depth > step + 1) & (gains > 0)
    total = tl.sum(tl.where(on, gains, 0.0).to(tl.float64), axis=0)
    others = tl.max((active & (cut == 0)).to(tl.int32), axis=0) > 0
    passes = others | (total > tl.load(cutoff + NO_GUESS + 3).to(tl.float64))
    tl.store(probabilities + r, probability, mask=there)
    tl.store(going + r, (on & passes).to(tl.int32), mask=there)
    return tl.where(worth, step + 1, tl.load(line + KEPT, mask=there, other=0))


@triton.jit(do_not_specialize=["requests", "wide", "step", "count"])
def _guessed(
    inputs, results, guess, confidence, edges, cutoff, probabilities, going, starts, page_at, table, tokens,
    positions, slots, pages_at, cu_rows, cu_paths, requests, wide, step, count, CUTS: tl.constexpr,
    PASSES: tl.constexpr, PAGE: tl.constexpr, LANES: tl.constexpr, E: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """PASSES: whether another pass follows. count: number of edges."""
    wait(PDL)
    let_next_start(PDL)
    r = tl.arange(0, LANES)
    there = r < requests
    line = results + r * RESULT_WIDTH
    depth = tl.load(line + DEPTH, mask=there, other=0)
    made = tl.load(line + MADE, mask=there, other=0)
    token = tl.load(guess + r, mask=there, other=-1).to(tl.int32)
    new = (made == step) & (depth > step) & (token >= 0)  # so far every guess was made
    made += new.to(tl.int32)
    active = new & (depth > step + 1)
    kept = made
    if CUTS:
        e = tl.arange(0, E)
        edge = tl.load(edges + e, mask=e < count, other=0.0)
        sure = tl.load(confidence + r, mask=there, other=0.0)
        above = (sure[:, None] >= edge[None, :]) & (e < count)[None, :]
        bins = tl.sum(above.to(tl.int32), axis=1)
        tl.store(line + BINS + step, bins, mask=there)
        cut = (tl.load(inputs + r * INPUTS + CUT, mask=there, other=0) > 0) & (depth > 0)
        worth = _cut_chains(line, bins, new, cut, active, depth, probabilities, going, cutoff, r, there, step)
        kept = tl.where(cut, worth, made)
    token = tl.where(new, token, 0)
    tl.store(line + GUESSES + step, token, mask=there)
    tl.store(line + MADE, made, mask=there)
    tl.store(line + KEPT, kept, mask=there)
    if PASSES:
        taken = tl.load(line + TAKEN, mask=there, other=0)
        place = tl.load(starts + r, mask=there, other=0) + taken + step
        place = tl.where(active, place, 0)
        at = tl.where(active, tl.load(page_at + r, mask=there, other=0), 0)
        page = tl.load(table + at + place // PAGE, mask=r < wide, other=0)
        tl.store(tokens + r, tl.where(active, token, 0), mask=r < wide)
        tl.store(positions + r, place, mask=r < wide)
        tl.store(slots + r, page * PAGE + place % PAGE, mask=r < wide)
        tl.store(pages_at + r, at, mask=r < wide)
        tl.store(cu_rows + r, r, mask=r < wide)
        tl.store(cu_paths + r, tl.zeros_like(r), mask=r < wide)
        tl.store(cu_rows + wide, wide)
        tl.store(cu_paths + wide, 0)


def guessed(
    inputs: Tensor, results: Tensor, step: int, guess: Tensor, confidence: Tensor | None, edges: Tensor,
    cutoff: Tensor, probabilities: Tensor, going: Tensor, extend: Batch, batch: Batch | None, page_size: int,
) -> None:  # fmt: skip
    """results <- guess number `step` of each chain, [R] int64. confidence: [R] f32; None: no chain is cut.
    probabilities, going: [R] f32 and int32, the state of the cutoff from guess to guess. extend: the pass
    over committed positions. batch <- the next pass; None: there is none."""
    assert guess.is_contiguous()
    assert confidence is None or confidence.is_contiguous()
    requests, spans = len(inputs), extend.attention
    to: tuple[Tensor, ...] = (inputs,) * 6
    if batch is not None:
        own = batch.attention
        to = batch.tokens, batch.positions, batch.slots, own.page_at, own.cu_rows, own.cu_paths
    wide = requests if batch is None else batch.rows
    lanes = lanes_of(wide)
    _guessed[(1,)](
        inputs, results, guess, guess if confidence is None else confidence, edges, cutoff, probabilities,
        going, spans.starts, spans.page_at, spans.table, *to, requests, wide, step, len(edges),
        CUTS=confidence is not None, PASSES=batch is not None, PAGE=page_size, LANES=lanes,
        E=triton.next_power_of_2(len(edges)), num_warps=warps_of(lanes), enable_fp_fusion=False,
        **early(inputs.device),
    )  # fmt: skip
