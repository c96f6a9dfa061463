"""The drafts of a step on the device: what `nextn.speculative.mtp.MTPDrafter` makes, in tensor code.

Every pass runs: without the host nothing can end them. So all guesses of a chain are made, as where the host
chooses on a device (`nextn.models.base.DeviceChoice`), and the gate says which would have been made and are
worth verifying. Rows that a chain does not need are computed in page 0.

Shapes: R requests, T rows of draft extend, D = MAX_DRAFTS.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from nextn.kvcache.pool import KVPool
from nextn.layers.device_batch import Laid, Paged, laid_out, rows_apart
from nextn.models.torch_model import TorchModel
from nextn.ops.base import align
from nextn.sampling.row_draws import Choosing
from nextn.speculative.device.choose import guessed
from nextn.speculative.device.gate import Gate, bins_of
from nextn.speculative.device.relay import Committed, Requests


class Drafting(NamedTuple):
    """num_steps: of the deepest draft to make. extends: does the draft layer see any positions of the step?
    gated: may the cutoff end chains?"""

    num_steps: int = 0
    extends: bool = False
    gated: bool = False


class Extend(NamedTuple):
    """hidden [T, C]: of the target's rows. start, page_at: as the drafter counts positions and pages.
    num_steps: of each draft, at most; -1: the draft layer does not see its positions. cut: may the cutoff,
    [NUMBERS] f32, end it?"""

    hidden: Tensor
    rows: Laid
    before: Requests
    done: Committed
    start: Tensor
    page_at: Tensor
    num_steps: Tensor
    cut: Tensor
    cutoff: Tensor
    edges: Tensor


class Drafts(NamedTuple):
    """tokens, bins: [R, D]; the first `made` are guesses, of which the first `kept` are worth verifying.
    depth: of the chain that was wanted."""

    tokens: Tensor
    bins: Tensor
    made: Tensor
    kept: Tensor
    depth: Tensor


def nothing_drafted(drafts: Tensor) -> Drafts:
    """drafts: [R, D], of any numbers."""
    none, empty = torch.zeros_like(drafts[:, 0]), torch.zeros_like(drafts)
    return Drafts(empty, empty, none, none, none)


def drafted(
    model: TorchModel, pool: KVPool, work: Extend, drafting: Drafting, choosing: Choosing, paged: Paged
) -> Drafts:
    before, done, requests = work.before, work.done, len(work.start)
    length, found = before.length + done.taken, nothing_drafted(before.drafts)
    tokens, bins, made = found.tokens, torch.zeros_like(found.bins), found.made
    goes_on = ~done.ended & (done.taken > 0)
    depth = torch.where(goes_on, torch.minimum(work.num_steps, before.limit - length - 1).clamp(min=0), 0)
    cut = work.cut & (depth > 0) if drafting.gated else torch.zeros_like(goes_on)
    wide = align(requests, model.row_align) - requests

    def padded(values: Tensor) -> Tensor:
        return F.pad(values, (0, wide))

    state, ends = _extended(model, pool, work, paged)
    state = state.index_select(0, padded(ends))
    gate, active = Gate(work.cutoff, depth, cut), depth > 0
    for step in range(drafting.num_steps):
        draws = before.draws._replace(position=length + step)
        guess, confidence = guessed(model, state, draws, choosing, drafting.gated)
        new = active & (guess >= 0)
        made = made + new
        tokens[:, step] = torch.where(new, guess, 0)
        active = new & (depth > step + 1)
        if drafting.gated and confidence is not None:
            bins[:, step] = fell = bins_of(confidence, work.edges)
            gate.guessed(fell, new, (active & ~cut).any())
        if step + 1 < drafting.num_steps:
            place = work.start + done.taken + step
            batch = rows_apart(
                padded(active), padded(place), padded(work.page_at), padded(tokens[:, step]), paged
            )
            state = TorchModel.draft(model, batch, state, pool)
    return Drafts(tokens, bins, made, torch.where(cut, gate.kept, made), depth)


def _extended(model: TorchModel, pool: KVPool, work: Extend, paged: Paged) -> tuple[Tensor, Tensor]:
    """The draft layer over the true positions: states [T, C], and each request's last row of them."""
    rows, done, total = work.rows, work.done, len(work.hidden)
    seen = torch.where(work.num_steps < 0, 0, done.taken)
    true = laid_out(seen, work.start, work.page_at, total, done.tokens.shape[1], paged)
    source = torch.where(true.real, rows.first.index_select(0, true.span) + true.after, 0)
    batch = true.batch(true.of_rows(done.tokens))
    state = TorchModel.draft(model, batch, work.hidden.index_select(0, source), pool)
    return state, (true.first + seen - 1).clamp(min=0, max=total - 1)
