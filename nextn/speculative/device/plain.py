"""`nextn.speculative.device.numbers.StepNumbers` in plain tensor code of fixed shapes.

All passes run, because only the host could skip one. So all guesses of a chain are made, as with
`nextn.models.base.DeviceChoice`, and the cutoff decides which would have been made and are worth verifying.
Rows that a chain does not need are computed in page 0.

Shapes: R requests, T rows of the target and of draft extend, D = MAX_DRAFTS.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.draft import MAX_DRAFTS
from nextn.layers.batch import Batch
from nextn.layers.device_batch import Paged, lay_out, one_row_spans
from nextn.ops.base import align
from nextn.sampling.row_draws import RowDraws
from nextn.speculative.device.columns import CUT, DRAFT_FROM, MOST_DRAFTS, NUM_STEPS, SLOT
from nextn.speculative.device.cutoff import DeviceCutChains, bins_of
from nextn.speculative.device.numbers import Extend, StepMemory
from nextn.speculative.device.relay import Committed, Requests
from nextn.speculative.device.shape import StepShape


class PlainNumbers:
    def __init__(self, memory: StepMemory, shape: StepShape, index_dtype: torch.dtype) -> None:
        """index_dtype: of the index arrays for ops."""
        self.memory, self.shape, relay = memory, shape, memory.relay
        self.inputs = memory.inputs[: shape.requests].long()
        self.slots = self.inputs[:, SLOT]
        self.page_at = self.slots * relay.most_pages
        self.paged = Paged(relay.pages.view(-1), memory.page_size, shape.longest, index_dtype)
        self.before = Requests(relay.rows.index_select(0, self.slots))

    def begin(self) -> Batch:
        before = self.before
        room = before.limit - before.length - 1
        drafts = torch.minimum(before.count, torch.minimum(self.inputs[:, MOST_DRAFTS], room)).clamp(min=0)
        before.count = torch.where(before.alive, drafts, 0)
        counts = torch.where(before.alive, before.count + 1, 0)
        most = 1 + MAX_DRAFTS
        self.target = lay_out(counts, before.length - 1, self.page_at, self.shape.rows, most, self.paged)
        return self.target.batch(self.target.of_rows(torch.cat((before.root[:, None], before.drafts), dim=1)))

    def draws(self) -> RowDraws:
        draws = self.before.draws.take(self.target.span)
        return draws._replace(position=draws.position + self.target.after)

    def verify(self, chosen: Tensor) -> Extend | None:
        before, target = self.before, self.target
        depth = torch.arange(1 + MAX_DRAFTS, device=chosen.device)
        places = (target.first[:, None] + depth).clamp(max=self.shape.rows - 1)
        own = chosen.index_select(0, places.flatten()).view(places.shape)
        holds = (own[:, :-1] == before.drafts) & (depth[:-1] < before.count[:, None])
        accepted = holds.long().cumprod(dim=1).sum(dim=1)
        final = own.gather(1, accepted[:, None])
        taken = torch.where(before.alive, accepted + (final[:, 0] >= 0), 0)
        drafts = F.pad(before.drafts, (0, 1))
        tokens = torch.where(depth < accepted[:, None], drafts, final)
        there = depth < taken[:, None]
        tokens = torch.where(there, tokens, 0)
        stops = ((tokens[:, :, None] == before.end_ids[:, None]).any(dim=2) & there).any(dim=1)
        failed = before.alive & (taken == 0) & (before.count == 0)
        ended = ~before.alive | failed | stops | (before.length + taken >= before.limit)
        self.done = Committed(tokens, taken, before.count, failed, ended)
        self._nothing_drafted()
        return self._extend() if self.shape.drafting.extends else None

    def _nothing_drafted(self) -> None:
        """Resets the drafts. tokens, bins: [R, D]; the first `made` are guesses, of which the first `kept`
        are worth verifying. depth: the wanted depth of each chain."""
        self.tokens, self.bins = torch.zeros_like(self.before.drafts), torch.zeros_like(self.before.drafts)
        self.made = self.kept = self.depth = torch.zeros_like(self.before.length)

    def _extend(self) -> Extend:
        before, done, inputs, total = self.before, self.done, self.inputs, self.shape.rows
        # Positions and pages are counted from the first position that the drafter attends to.
        self.start = before.length - 1 - inputs[:, DRAFT_FROM]
        self.drafter_page_at = self.page_at + inputs[:, DRAFT_FROM] // self.paged.page_size
        self.length = before.length + done.taken
        goes_on = ~done.ended & (done.taken > 0)
        left = torch.minimum(inputs[:, NUM_STEPS], before.limit - self.length - 1).clamp(min=0)
        self.depth = torch.where(goes_on, left, 0)
        self.active = self.depth > 0
        cut = self.shape.drafting.cut
        self.cut = (inputs[:, CUT] > 0) & self.active if cut else torch.zeros_like(self.active)
        self.cut_chains = DeviceCutChains(self.memory.cutoff, self.depth, self.cut)
        seen = torch.where(inputs[:, NUM_STEPS] < 0, 0, done.taken)
        most = 1 + MAX_DRAFTS
        layout = lay_out(seen, self.start, self.drafter_page_at, total, most, self.paged)
        source = torch.where(layout.real, self.target.first.index_select(0, layout.span) + layout.after, 0)
        last = (layout.first + seen - 1).clamp(min=0, max=total - 1)
        return Extend(layout.batch(layout.of_rows(done.tokens)), source, self._padded(last))

    def guess_draws(self, step: int) -> RowDraws:
        return self.before.draws._replace(position=self.length + step)

    def guessed(self, step: int, guess: Tensor, confidence: Tensor | None) -> Batch | None:
        new = self.active & (guess >= 0)
        self.made = self.made + new
        self.tokens[:, step] = torch.where(new, guess, 0)
        self.active = new & (self.depth > step + 1)
        if confidence is not None:
            self.bins[:, step] = guess_bins = bins_of(confidence, self.memory.edges)
            self.cut_chains.guessed(guess_bins, new, (self.active & ~self.cut).any())
        self.kept = torch.where(self.cut, self.cut_chains.kept, self.made)
        if step + 1 == self.shape.drafting.num_steps:
            return None
        return one_row_spans(
            self._padded(self.active), self._padded(self.start + self.done.taken + step),
            self._padded(self.drafter_page_at), self._padded(self.tokens[:, step]), self.paged,
        )  # fmt: skip

    def end(self) -> None:
        before, done = self.before, self.done
        self.memory.relay.rows.index_copy_(0, self.slots, before.after(done, self.kept, self.tokens))
        numbers = (
            before.length - 1, done.verified, done.taken, self.kept, self.made, self.depth,
            done.failed.long(), (~before.alive).long(),
        )  # fmt: skip
        found = torch.cat((torch.stack(numbers, dim=1), done.tokens, self.tokens, self.bins), dim=1)
        self.memory.results[: self.shape.requests] = found.int()

    def _padded(self, values: Tensor) -> Tensor:
        """[R], padded to a multiple of the model's row_align."""
        return F.pad(values, (0, align(len(values), self.memory.row_align) - len(values)))
