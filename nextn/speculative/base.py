"""The contract of a drafter: one call a step, which says everything about the step's requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from torch import Tensor

from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT, Draft
from nextn.request import Failure
from nextn.sampling.choice import SampledRequest
from nextn.speculative.draft_state import DraftState


@dataclass(slots=True)  # frozen ones take three times as long to make, and every step makes many
class DraftSpan:
    """What a step settled for one request: positions start .. start + len(following) - 1 are true, counted
    from the first one that the drafter sees, as `pages` are."""

    request: (
        SampledRequest  # as it was before the step, but for its grammar, which is at the last of `chosen`
    )
    state: DraftState
    start: int
    rows: Sequence[int]  # of `hidden`, those of these positions
    following: Sequence[int]  # following[i]: the token after position start + i
    pages: Sequence[int]
    num_steps: int  # of the draft to make
    chosen: Sequence[int]  # by the step; empty amid a prompt
    room: int = 0  # drafts that fit before the request's end
    draft_from: int = 0  # the first position that the drafter sees, in the request's own count
    extend: bool = True  # else the positions wait until a step that extends, and `num_steps` is 0
    cutoff: Cutoff | None = None  # what may cut the draft short; the same for all that have one

    @property
    def position(self) -> int:
        """Of the first token to guess, in the request's own count."""
        return len(self.request.history) + len(self.chosen)


class DraftRequest(NamedTuple):
    """hidden [T, C]: of the target's step."""

    hidden: Tensor
    spans: Sequence[DraftSpan]


class Drafted(NamedTuple):
    """A draft for each span, and what ran to make them. failed: why requests end, by the number of their
    span."""

    drafts: list[Draft]
    extended: int = 0  # rows that the draft layer ran over
    passes: Sequence[int] = ()  # rows of each pass for depths beyond the first
    failed: Mapping[int, Failure] = {}


class Drafter(Protocol):
    def draft(self, request: DraftRequest) -> Drafted:
        """The next draft of each span, at most `num_steps` deep. What is kept of the requests is in the
        spans' `state`."""

    def forget(self) -> None:
        """Of requests that did not extend, nothing is kept any longer: they will not extend over it."""

    def drop(self, state: DraftState) -> None:
        """This request has ended, or will come again from its beginning with another state."""


class NoDrafter:
    """Speculation off: the same step, without drafts."""

    def draft(self, request: DraftRequest) -> Drafted:
        return Drafted([NO_DRAFT for _ in request.spans])

    def forget(self) -> None:
        pass

    def drop(self, state: DraftState) -> None:
        pass
