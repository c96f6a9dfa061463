"""What a step on the device computes between the passes of its layers: batches, verification, the gate of its
chains, results, and rows of the relay. `nextn.speculative.device.plain` says in plain tensor code what that
is; `nextn.speculative.device.triton` gives the same in a few kernels.

Shapes: R requests, T rows of the target and of draft extend.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from nextn.layers.batch import Batch
from nextn.sampling.row_draws import RowDraws
from nextn.speculative.device.relay import Relay


class StepMemory(NamedTuple):
    """What stays where it is from step to step. inputs: [most requests, INPUTS] int32; results: [most
    requests, RESULT_WIDTH] int32; cutoff: [NUMBERS] f32; edges: of bins of confidence, f32. row_align: of the
    model."""

    relay: Relay
    inputs: Tensor
    results: Tensor
    cutoff: Tensor
    edges: Tensor
    page_size: int
    row_align: int


class Extend(NamedTuple):
    """The draft layer's pass over committed positions, T rows. source: [T], the rows of the target's states
    that they go on from. last: [R or more], each request's last row of the pass."""

    batch: Batch
    source: Tensor
    last: Tensor


class StepNumbers(Protocol):
    """Of one step; to be called in this order."""

    def begin(self) -> Batch:
        """The target's batch, of roots and drafts."""

    def draws(self) -> RowDraws:
        """Of the target's rows."""

    def verify(self, chosen: Tensor) -> Extend | None:
        """chosen: [T] int64, the target's choices, NO_TOKEN where there is none. The drafts that are the
        target's own choices hold, and the choice after them is the next token. Where there is none, the
        request goes on from what holds; with no draft at all, it fails. None: nothing is drafted."""

    def guess_draws(self, step: int) -> RowDraws:
        """Of guess number `step` of each chain, [R]."""

    def guessed(self, step: int, guess: Tensor, confidence: Tensor | None) -> Batch | None:
        """guess: [R] int64, number `step` of each chain, NO_TOKEN where there is none. confidence: [R] f32,
        where the cutoff may end chains. Returns the batch of the next pass, a row for each request; None
        after the last guess."""

    def end(self) -> None:
        """Writes the relay's rows and the results."""
