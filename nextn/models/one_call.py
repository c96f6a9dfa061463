"""A model that runs a whole step of plain requests in one call (`nextn.engine.plain_step`): target, choices,
verification and next drafts. What goes in and comes out are arrays of int32, a few for each request.
"""

from __future__ import annotations

from array import array
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.kvcache.pool import KVPool
from nextn.ops.base import DrawParams

TURN, TAKEN = 8, 4  # numbers of a request in `PlainStep.turns` and `PlainResult.taken`
WORK = 5  # numbers before the passes in `PlainResult.work`
CHOOSES = -1  # instead of the token after a part of a prompt: the target chooses it
EXTENDS, CUT = 1, 2  # flags


class PlainStep(NamedTuple):
    """tokens: of all spans, each the known ones and its chain of drafts. table: their pages. asked: what
    `StepInOneCall.ask` made of the requests, one after another. choices: roots and drafts of those that
    choose. num_steps: the largest. drafts: may spans extend at all? extending: how many do.

    turns, of each request: start, known tokens, drafts, the token after a part of a prompt or CHOOSES, its
    places in the table, num_steps, flags, and the number of the first page that the drafter sees."""

    tokens: array[int]
    turns: array[int]
    table: array[int]
    asked: bytes
    spans: int
    choices: int
    num_steps: int
    cutoff: Cutoff | None
    drafts: bool
    extending: int


class PlainResult(NamedTuple):
    """taken begins with, of each request: drafts that hold; the target's own token after them, or NO_TOKEN;
    guesses of its next draft that are kept, -1 where none was to be made; and guesses that were made.

    work: rows that the NextN module took in; requests that chose, their drafts, and the positions before
    them; how many passes came after the module's first one, and the rows of each. guesses: num_steps for each
    draft, one after another. bins: theirs, where a cutoff may end drafts."""

    taken: list[int]
    work: list[int]
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

    def states_at(self) -> tuple[int, int]:
        """Where in memory they begin, and the bytes of a row."""
