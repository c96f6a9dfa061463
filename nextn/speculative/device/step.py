"""A decode step of chains as one function of tensors on the device.

The target over roots and drafts, the choice of every row, verification, draft extend, the next drafts with
their confidence gate (`nextn.speculative.device.drafts`), and the relay for the step that follows. A
`StepShape` fixes all shapes and the host reads nothing in between. So on CUDA the whole of it is one graph
(`nextn.speculative.device.graphs`); in the tests the same code runs on the CPU.

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
from nextn.layers.device_batch import Laid, Paged, laid_out
from nextn.models.torch_model import TorchModel
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.choose import chosen
from nextn.speculative.device.drafts import Drafting, Extend, drafted, nothing_drafted
from nextn.speculative.device.gate import NUMBERS, edges
from nextn.speculative.device.relay import Committed, Relay, Requests

# Numbers of a request: its slot of the relay; steps of the draft to make, -1 where the draft layer does not
# see the step's positions; drafts to verify, at most; may the cutoff end the draft? The first position that
# the drafter sees.
SLOT, NUM_STEPS, MOST_DRAFTS, CUT, DRAFT_FROM = range(5)
INPUTS = 5
# Columns of the results, before tokens [1 + D], next drafts [D] and their bins [D].
STARTED, VERIFIED, TAKEN, KEPT, MADE, DEPTH, FAILED, OVER = range(8)
RESULTS = 8


class StepShape(NamedTuple):
    """What a step's code depends on besides its numbers. rows: T. choosing: the most that a request asks for.
    longest: no row sees more positions."""

    requests: int
    rows: int
    drafting: Drafting
    choosing: Choosing
    longest: int


class DeviceStep:
    """inputs: [most requests, INPUTS] int32; cutoff: [NUMBERS] f32; results: [most requests, ...] int32. All
    stay where they are."""

    def __init__(self, model: TorchModel, pool: KVPool, relay: Relay, requests: int) -> None:
        """requests: of a step, at most."""
        self.model, self.pool, self.relay = model, pool, relay
        device = model.device
        self.index_dtype = torch.int64 if model.ops.name == "reference" else torch.int32
        self.inputs = torch.zeros(requests, INPUTS, dtype=torch.int32, device=device)
        self.cutoff = torch.zeros(NUMBERS, dtype=torch.float32, device=device)
        self.results = torch.zeros(requests, RESULTS + 1 + 3 * MAX_DRAFTS, dtype=torch.int32, device=device)
        self._edges = edges(device)

    def run(self, shape: StepShape) -> None:
        """Step of the first `shape.requests` inputs; changes their rows of the relay and writes results."""
        relay, inputs = self.relay, self.inputs[: shape.requests].long()
        slots, page_at = inputs[:, SLOT], inputs[:, SLOT] * relay.most_pages
        paged = Paged(relay.pages.view(-1), self.pool.page_size, shape.longest, self.index_dtype)
        before = Requests(relay.rows.index_select(0, slots))
        rows, hidden = self._forward(before, inputs[:, MOST_DRAFTS], page_at, shape, paged)
        done = self._verify(before, rows, hidden, shape)
        drafts = nothing_drafted(before.drafts)
        if shape.drafting.extends:
            start, draft_from = before.length - 1, inputs[:, DRAFT_FROM]
            extend = Extend(
                hidden, rows, before, done, start - draft_from, page_at + draft_from // paged.page_size,
                inputs[:, NUM_STEPS], inputs[:, CUT] > 0, self.cutoff, self._edges,
            )  # fmt: skip
            drafts = drafted(self.model, self.pool, extend, shape.drafting, shape.choosing, paged)
        relay.rows.index_copy_(0, slots, before.after(done, drafts.kept, drafts.tokens))
        numbers = (
            before.length - 1, done.verified, done.taken, drafts.kept, drafts.made, drafts.depth,
            done.failed.long(), (~before.alive).long(),
        )  # fmt: skip
        found = torch.cat((torch.stack(numbers, dim=1), done.tokens, drafts.tokens, drafts.bins), dim=1)
        self.results[: shape.requests] = found.int()

    def _forward(
        self, before: Requests, most: Tensor, page_at: Tensor, shape: StepShape, paged: Paged
    ) -> tuple[Laid, Tensor]:
        """The target over roots and drafts; `before.count` is then the drafts'. Returns hidden [T, C]."""
        room = before.limit - before.length - 1
        drafts = torch.minimum(before.count, torch.minimum(most, room)).clamp(min=0)
        before.count = torch.where(before.alive, drafts, 0)
        counts = torch.where(before.alive, before.count + 1, 0)
        rows = laid_out(counts, before.length - 1, page_at, shape.rows, 1 + MAX_DRAFTS, paged)
        tokens = rows.of_rows(torch.cat((before.root[:, None], before.drafts), dim=1))
        return rows, TorchModel.forward(self.model, rows.batch(tokens), self.pool)

    def _verify(self, before: Requests, rows: Laid, hidden: Tensor, shape: StepShape) -> Committed:
        """The drafts that are the target's own choices hold, and the choice after them is the next token.
        Where there is none, the request goes on from what holds; with no draft at all, it fails."""
        draws = before.draws.take(rows.span)
        draws = draws._replace(position=draws.position + rows.after)
        every = chosen(self.model, hidden, draws, shape.choosing)
        depth = torch.arange(1 + MAX_DRAFTS, device=every.device)
        places = (rows.first[:, None] + depth).clamp(max=shape.rows - 1)
        own = every.index_select(0, places.flatten()).view(places.shape)
        holds = (own[:, :-1] == before.drafts) & (depth[:-1] < before.count[:, None])
        accepted = holds.long().cumprod(dim=1).sum(dim=1)
        final = own.gather(1, accepted[:, None])
        taken = torch.where(before.alive, accepted + (final[:, 0] >= 0), 0)
        drafts = torch.nn.functional.pad(before.drafts, (0, 1))
        tokens = torch.where(depth < accepted[:, None], drafts, final)
        there = depth < taken[:, None]
        tokens = torch.where(there, tokens, 0)
        stops = ((tokens[:, :, None] == before.end_ids[:, None]).any(dim=2) & there).any(dim=1)
        failed = before.alive & (taken == 0) & (before.count == 0)
        ended = ~before.alive | failed | stops | (before.length + taken >= before.limit)
        return Committed(tokens, taken, before.count, failed, ended)
