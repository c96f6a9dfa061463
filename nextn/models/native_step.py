"""Packs and reads the arrays of csrc/step.h: `nextn.models.one_call` on the native kernels."""

from __future__ import annotations

from array import array

from nextn.cutoff import EDGES, Cutoff
from nextn.models.one_call import RESULT_FIELDS, WORK, PlainResult, PlainStep
from nextn.ops.base import DrawParams
from nextn.ops.cpu.interface import CUTOFF, REQUEST, STEP


def pack_request(draw: DrawParams, ends: array[int], limit: int) -> bytes:
    return REQUEST.pack(*draw, ends.buffer_info()[0], len(ends), limit)


class StepBuffers:
    """Buffers for the results of a step, reused in every step. One has an NxSpanResult per request, then the
    work, then the guesses. The other has the guesses' bins."""

    def __init__(self) -> None:
        self._grow(64)
        self._cutoff: Cutoff | None = None
        self._packed_cutoff = array("B")

    def _grow(self, numbers: int) -> None:
        self._numbers, self._bins = array("i", bytes(4 * numbers)), array("B", bytes(numbers))
        self._at, self._bins_at = self._numbers.buffer_info()[0], self._bins.buffer_info()[0]

    def packed(self, step: PlainStep, vocab: int, hidden: int, scores: int) -> bytes:
        """The step as nx_step reads it. hidden, scores: addresses of these buffers."""
        spans, width = step.spans, step.num_steps
        work = RESULT_FIELDS * spans
        guesses = work + WORK + width
        if len(self._numbers) < guesses + spans * width:
            self._grow(2 * (guesses + spans * width))
        at = self._at
        return STEP.pack(
            spans, vocab, step.tokens.buffer_info()[0], step.span_fields.buffer_info()[0], hidden, scores,
            0 if step.cutoff is None else self._cutoff_at(step.cutoff), step.drafts, width, at,
            at + 4 * guesses, self._bins_at, at + 4 * work,
        )  # fmt: skip

    def _cutoff_at(self, cutoff: Cutoff) -> int:
        if cutoff is not self._cutoff:
            numbers = CUTOFF.pack(*EDGES, *cutoff.numbers)
            self._cutoff, self._packed_cutoff = cutoff, array("B", numbers)
        return self._packed_cutoff.buffer_info()[0]

    def read(self, step: PlainStep) -> PlainResult:
        spans, width = step.spans, step.num_steps
        work = RESULT_FIELDS * spans
        guesses = work + WORK + width
        found = self._numbers[: guesses + spans * width].tolist()
        bins = b"" if step.cutoff is None else self._bins[: spans * width].tobytes()
        return PlainResult(found, found[work:guesses], found[guesses:], bins)
