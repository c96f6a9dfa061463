"""A decode step of chains as one function of tensors on the device.

The target over roots and drafts, the choice of every row, verification, draft extend, the next drafts with
their confidence gate, and the relay for the step that follows. A `StepShape` fixes all shapes and the host
reads nothing in between. So on CUDA the whole of it is one graph (`nextn.engine.step_graphs`); in the tests
the same code runs on the CPU.

It computes what `nextn.engine.runner` computes for such spans, to the bit: a row has the same bits in any
batch.

Shapes: R requests, T rows of the target and of draft extend, D = MAX_DRAFTS.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from nextn.draft import MAX_DRAFTS
from nextn.kvcache.pool import KVPool
from nextn.layers.device_batch import Laid, Paged, laid_out, rows_apart
from nextn.models.deepseek_v3 import DeepseekV3
from nextn.ops.base import align
from nextn.sampling.row_draws import Choosing, draw_rows
from nextn.speculative.gate import NUMBERS, Gate, bins_of, edges
from nextn.speculative.relay import Relay, Requests

# Columns of the inputs, and of the results before tokens [1 + D], next drafts [D] and their bins [D].
SLOT, NUM_STEPS, MOST_DRAFTS, CUT = range(4)
INPUTS = 4
STARTED, VERIFIED, TAKEN, KEPT, MADE, DEPTH, FAILED, OVER = range(8)
RESULTS = 8


class StepShape(NamedTuple):
    """What a step's code depends on besides its numbers. rows: T. num_steps: the deepest draft to make.
    choosing: the most that a request asks for. gated: may the cutoff end chains? longest: no row sees more
    positions."""

    requests: int
    rows: int
    num_steps: int
    choosing: Choosing
    gated: bool
    longest: int


class Committed(NamedTuple):
    """Of each request. tokens [R, 1 + D]: the first `taken` are committed. verified: drafts that it had."""

    tokens: Tensor
    taken: Tensor
    verified: Tensor
    failed: Tensor
    ended: Tensor


class Drafts(NamedTuple):
    """tokens, bins: [R, D]; the first `made` are guesses, of which the first `kept` are worth verifying.
    depth: of the chain that was wanted."""

    tokens: Tensor
    bins: Tensor
    made: Tensor
    kept: Tensor
    depth: Tensor


class DeviceStep:
    """inputs: [most requests, INPUTS] int32; cutoff: [NUMBERS] f32; results: [most requests, ...] int32. All
    stay where they are."""

    def __init__(self, model: DeepseekV3, pool: KVPool, relay: Relay, requests: int, extends: bool) -> None:
        """requests: of a step, at most. extends: is there a drafter?"""
        self.model, self.pool, self.relay, self.extends = model, pool, relay, extends
        device = model.device
        self.index_dtype = torch.int64 if model.ops.name == "reference" else torch.int32
        self.inputs = torch.zeros(requests, INPUTS, dtype=torch.int32, device=device)
        self.cutoff = torch.zeros(NUMBERS, dtype=torch.float32, device=device)
        self.results = torch.zeros(requests, RESULTS + 1 + 3 * MAX_DRAFTS, dtype=torch.int32, device=device)
        self._edges = edges(device)

    def run(self, shape: StepShape) -> None:
        """Step of the first `shape.requests` inputs; changes their rows of the relay and writes results."""
        slots, steps, most, cut = self.inputs[: shape.requests].long().unbind(1)
        before = Requests(self.relay.rows.index_select(0, slots))
        paged = Paged(self.relay.pages.view(-1), self.pool.page_size, shape.longest, self.index_dtype)
        page_at = slots * self.relay.most_pages
        rows, hidden = self._forward(before, most, page_at, shape, paged)
        done = self._verify(before, rows, hidden, shape)
        length = before.length + done.taken
        drafts = self._draft(before, rows, hidden, done, length, steps, cut > 0, page_at, shape, paged)
        last = (done.taken - 1).clamp(min=0)[:, None]
        root = torch.where(done.taken > 0, done.tokens.gather(1, last)[:, 0], before.root)
        after = before.after(length, root, done.ended, drafts.kept, drafts.tokens)
        self.relay.rows.index_copy_(0, slots, after)
        numbers = (
            before.length - 1, done.verified, done.taken, drafts.kept, drafts.made, drafts.depth,
            done.failed.long(), (~before.alive).long(),
        )  # fmt: skip
        found = torch.cat((torch.stack(numbers, dim=1), done.tokens, drafts.tokens, drafts.bins), dim=1)
        self.results[: shape.requests] = found.int()

    def _forward(
        self, before: Requests, most: Tensor, page_at: Tensor, shape: StepShape, paged: Paged
    ) -> tuple[Laid, Tensor]:
        """The target over roots and drafts. Returns hidden [T, C]."""
        room = before.limit - before.length - 1
        drafts = torch.minimum(before.count, torch.minimum(most, room)).clamp(min=0)
        before.count = torch.where(before.alive, drafts, 0)
        counts = torch.where(before.alive, before.count + 1, 0)
        rows = laid_out(counts, before.length - 1, page_at, shape.rows, 1 + MAX_DRAFTS, paged)
        tokens = rows.of_rows(torch.cat((before.root[:, None], before.drafts), dim=1))
        return rows, DeepseekV3.forward(self.model, rows.batch(tokens), self.pool)

    def _verify(self, before: Requests, rows: Laid, hidden: Tensor, shape: StepShape) -> Committed:
        """The drafts that are the target's own choices hold, and the choice after them is the next token.
        Where there is none, the request goes on from what holds; with no draft at all, it fails."""
        draws = before.draws.take(rows.span)
        draws = draws._replace(position=draws.position + rows.after)
        chosen, _ = draw_rows(self.model.logits(hidden), draws, shape.choosing)
        depth = torch.arange(1 + MAX_DRAFTS, device=chosen.device)
        places = (rows.first[:, None] + depth).clamp(max=shape.rows - 1)
        own = chosen.index_select(0, places.flatten()).view(places.shape)
        holds = (own[:, :-1] == before.drafts) & (depth[:-1] < before.count[:, None])
        accepted = holds.long().cumprod(dim=1).sum(dim=1)
        final = own.gather(1, accepted[:, None])
        count = torch.where(before.alive, accepted + (final[:, 0] >= 0), 0)
        drafts = torch.nn.functional.pad(before.drafts, (0, 1))
        tokens = torch.where(depth < accepted[:, None], drafts, final)
        tokens = torch.where(depth < count[:, None], tokens, 0)
        stops = (tokens[:, :, None] == before.end_ids[:, None]).any(dim=2) & (depth < count[:, None])
        failed = before.alive & (count == 0) & (before.count == 0)
        over = before.length + count >= before.limit
        return Committed(
            tokens, count, before.count, failed, ~before.alive | failed | over | stops.any(dim=1)
        )

    def _draft(
        self, before: Requests, rows: Laid, hidden: Tensor, done: Committed, length: Tensor, steps: Tensor,
        cut: Tensor, page_at: Tensor, shape: StepShape, paged: Paged,
    ) -> Drafts:  # fmt: skip
        """Draft extend over the true positions, then the chains."""
        goes_on = ~done.ended & (done.taken > 0)
        depth = torch.where(goes_on, torch.minimum(steps, before.limit - length - 1).clamp(min=0), 0)
        tokens, bins = torch.zeros_like(before.drafts), torch.zeros_like(before.drafts)
        made = torch.zeros_like(length)
        if not self.extends:
            return Drafts(tokens, bins, made, made, made)
        start = before.length - 1 - before.draft_from
        page_at = page_at + before.draft_from // paged.page_size
        true = laid_out(done.taken, start, page_at, shape.rows, 1 + MAX_DRAFTS, paged)
        source = torch.where(true.real, rows.first.index_select(0, true.span) + true.after, 0)
        state = self._nextn(true.batch(true.of_rows(done.tokens)), hidden.index_select(0, source))
        ends = (true.first + done.taken - 1).clamp(min=0, max=shape.rows - 1)
        wide = align(shape.requests, self.model.row_align) - shape.requests  # padding of the chains' rows

        def padded(values: Tensor) -> Tensor:
            return torch.nn.functional.pad(values, (0, wide))

        state = state.index_select(0, padded(ends))
        cut = cut & (depth > 0) if shape.gated else torch.zeros_like(cut)
        active = depth > 0
        gate = Gate(self.cutoff, depth, cut)
        for step in range(shape.num_steps):
            logits = self.model.draft_logits(state)[: shape.requests]
            draws = before.draws._replace(position=length + step)
            best = self.model.ops.best_token if shape.gated else None
            guess, confidence = draw_rows(logits, draws, shape.choosing, best)
            found = active & (guess >= 0)
            made = made + found
            tokens[:, step] = torch.where(found, guess, 0)
            others = found & ~cut & (depth > step + 1)
            active = others
            if confidence is not None:
                fell = bins_of(confidence, self._edges)
                bins[:, step] = fell
                gate.guessed(fell, found, others.any())
                active = others | gate.going
            if step + 1 < shape.num_steps:
                place = start + done.taken + step
                batch = rows_apart(
                    padded(active), padded(place), padded(page_at), padded(tokens[:, step]), paged
                )
                state = self._nextn(batch, state)
        return Drafts(tokens, bins, made, torch.where(cut, gate.kept, made), depth)

    def _nextn(self, batch: object, hidden: Tensor) -> Tensor:
        return DeepseekV3.draft(self.model, batch, hidden, self.pool)  # type: ignore[arg-type]
