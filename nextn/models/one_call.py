"""A model that runs a whole step of plain requests in one call (`nextn.engine.plain_step`): target, choices,
verification and next drafts. What goes in and comes out are arrays of int32, a few for each request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.kvcache.pool import KVPool
from nextn.ops.base import DrawParams

TURN, TAKEN = 8, 4  # numbers of a request in `PlainStep.turns` and `PlainResult.taken`
CHOOSES = -1  # instead of the token after a part of a prompt: the target chooses it
EXTENDS, CUT = 1, 2  # flags


class PlainStep(NamedTuple):
    """tokens: of all spans, each the known ones and its chain of drafts. table: their pages. asked: what
    `StepInOneCall.ask` made of each request. num_steps: the largest. drafts: may spans extend at all?

    turns, of each request: start, known tokens, drafts, the token after a part of a prompt or CHOOSES, pages,
    num_steps, flags, and the number of the first page that the drafter sees."""

    tokens: array[int]
    turns: array[int]
    table: array[int]
    asked: Sequence[bytes]
    choices: int  # roots and drafts of the spans that choose
    num_steps: int
    cutoff: Cutoff | None
    drafts: bool


class PlainResult(NamedTuple):
    """taken, of each request: how many of its drafts hold, and the target's own token after them, or
    NO_TOKEN; how many guesses of its next draft are kept, -1 where none was to be made, and how many were
    made.

    passes: rows that the NextN module ran over, then of each depth how many guesses were made, zeros at the
    end. guesses: num_steps for each draft, one after another. bins: theirs, where a cutoff may end drafts."""

    taken: list[int]
    passes: list[int]
    guesses: list[int]
    bins: bytes


@runtime_checkable
class StepInOneCall(Protocol):
    def ask(self, draw: DrawParams, ends: array[int], limit: int) -> bytes:
        """What does not change of a request: its draws but for their position, the tokens that end it, which
        must stay where they lie, and how many tokens there may be."""

    def plain_step(self, step: PlainStep, pool: KVPool) -> PlainResult:
        """Verification is `exact`, drafts are those of `nextn.speculative.mtp.MTPDrafter`. A request that has
        ended, or has no room for more, gets no draft."""

    def states(self, rows: int) -> Tensor:
        """The target's hidden states of the last step, [rows, C]; written over by the next one."""
