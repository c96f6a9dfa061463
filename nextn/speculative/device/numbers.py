"""The contract of the work of a device step between its forward passes: batches, verification, the cutoff
of chains, results, and rows of the relay. `nextn.speculative.device.plain` does it in plain tensor code,
`nextn.speculative.device.triton` with a few kernels.

Shapes: R requests, T rows of the target and of draft extend.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from torch import Tensor

from nextn.layers.batch import Batch
from nextn.sampling.row_draws import RowDraws
from nextn.speculative.device.relay import Relay


class StepMemory(NamedTuple):
    """Memory with fixed addresses for all steps. inputs: [max requests, INPUTS] int32; results: [max
    requests, RESULT_WIDTH] int32; cutoff: [NUMBERS] f32; edges: of confidence bins, f32. row_align: of the
    model."""

    relay: Relay
    inputs: Tensor
    results: Tensor
    cutoff: Tensor
    edges: Tensor
    page_size: int
    row_align: int


class Extend(NamedTuple):
    """The draft layer's pass over committed positions, T rows. source: [T], the rows of the target's hidden
    states that it reads. last: [R or more], each request's last row of the pass."""

    batch: Batch
    source: Tensor
    last: Tensor


class StepNumbers(Protocol):
    """The work of one step. The methods are to be called in this order."""

    def begin(self) -> Batch:
        """The target's batch: roots and drafts."""

    def draws(self) -> RowDraws:
        """The draws for the target's rows."""

    def verify(self, chosen: Tensor) -> Extend | None:
        """chosen: [T] int64, the target's choices, NO_TOKEN if there is none. Drafts that equal the target's
        choices are accepted, and the choice after them is the bonus token. If there is no such choice, the
        request continues from the accepted drafts; without any draft, it fails. Returns None if no drafts are
        made."""

    def guess_draws(self, step: int) -> RowDraws:
        """The draws for guess number `step` of each chain, [R]."""

    def guessed(self, step: int, guess: Tensor, confidence: Tensor | None) -> Batch | None:
        """guess: [R] int64, guess number `step` of each chain, NO_TOKEN if there is none. confidence: [R]
        f32, if the cutoff may end chains. Returns the batch of the next pass, with a row for each request, or
        None after the last guess."""

    def end(self) -> None:
        """Writes the relay's rows and the results."""
