"""The contract of a model that runs a whole step of plain requests in one call (`nextn.engine.plain_step`):
target, choices, verification and next drafts. Input and output are int32 arrays, a few numbers a request.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.kvcache.pool import KVPool
from nextn.ops.base import DrawParams

SPAN_FIELDS, RESULT_FIELDS = 8, 4  # numbers per request in `PlainStep.span_fields` and `PlainResult.results`
WORK = 5  # numbers in `PlainResult.work` before the rows of the passes
CHOOSES = -1  # in place of the token after a prompt chunk: the target chooses the token
EXTENDS, CUT = 1, 2  # flags


class PlainStep(NamedTuple):
    """tokens: those of all spans; a span has its known tokens, then its chain of drafts. table: the spans'
    pages. requests: results of `StepInOneCall.pack_request`, one per request. choices: number of roots and
    drafts of the requests that choose. num_steps: the largest. drafts: whether spans may extend.
    num_extending: how many do.

    span_fields: SPAN_FIELDS numbers per request: start, known tokens, drafts, the token after a prompt chunk
    or CHOOSES, number of its pages in `table`, num_steps, flags, and the index of the first page that the
    drafter sees."""

    tokens: array[int]
    span_fields: array[int]
    table: array[int]
    requests: bytes
    spans: int
    choices: int
    num_steps: int
    cutoff: Cutoff | None
    drafts: bool
    num_extending: int


class PlainResult(NamedTuple):
    """results begins with RESULT_FIELDS numbers per request: accepted drafts; the target's token after them,
    or NO_TOKEN; guesses kept for its next draft, -1 if no draft was wanted; and guesses made.

    work: rows of the NextN module's first pass; requests that chose, their drafts, and the positions before
    them; number of passes after the module's first one, and the rows of each. guesses: num_steps for each
    draft, one draft after another. bins: the guesses' bins, if a cutoff may end drafts."""

    results: list[int]
    work: list[int]
    guesses: list[int]
    bins: bytes


@runtime_checkable
class StepInOneCall(Protocol):
    def pack_request(self, draw: DrawParams, ends: array[int], limit: int) -> bytes:
        """The constant part of a request: its draws without their position, the tokens that end it, and its
        maximum number of tokens. The result contains the address of `ends`, which must outlive it."""

    def plain_step(self, step: PlainStep, pool: KVPool) -> PlainResult:
        """Runs a step. Verification is `exact`; drafts are as from `nextn.speculative.mtp.MTPDrafter`. A
        request that has ended, or has its maximum number of tokens, gets no draft."""

    def states(self, rows: int) -> Tensor:
        """The target's hidden states of the last step, [rows, C]. The next step overwrites them."""

    def states_at(self) -> tuple[int, int]:
        """(the address of these hidden states, the bytes of a row)."""
