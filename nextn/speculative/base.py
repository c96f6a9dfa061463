"""The contract of a drafter: one call per step, for all requests of the step."""

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
    """What a step committed for one request: the positions start .. start + len(following) - 1. `start` and
    `pages` are counted from `draft_from`."""

    # As before the step, except for its grammar, which has been advanced over `chosen`.
    request: SampledRequest
    state: DraftState
    start: int
    rows: Sequence[int]  # the rows of `hidden` for these positions
    following: Sequence[int]  # following[i]: the token after position start + i
    pages: Sequence[int]
    num_steps: int  # depth of the draft to make
    chosen: Sequence[int]  # tokens that the step committed; empty for a prompt chunk
    room: int = 0  # number of drafts that fit before the request's end
    draft_from: int = 0  # the first position that the draft layer attends to, in the request
    extend: bool = True  # False: the positions wait for a step that extends, and `num_steps` is 0
    cutoff: Cutoff | None = None  # may end the draft early; the same for all spans that have one

    @property
    def position(self) -> int:
        """The position of the first token to guess, in the request."""
        return len(self.request.history) + len(self.chosen)


class DraftRequest(NamedTuple):
    """hidden [T, C]: the target's hidden states in this step."""

    hidden: Tensor
    spans: Sequence[DraftSpan]


class Drafted(NamedTuple):
    """A draft for each span, and what was computed for them. failed: index of a span -> why its request
    ends."""

    drafts: list[Draft]
    extended: int = 0  # rows that the draft layer ran over
    passes: Sequence[int] = ()  # rows of each pass for depths after the first
    failed: Mapping[int, Failure] = {}


class Drafter(Protocol):
    def draft(self, request: DraftRequest) -> Drafted:
        """The next draft of each span, at most `num_steps` deep. A drafter keeps data about a request in the
        span's `state`."""

    def forget(self) -> None:
        """Drops everything that is kept of requests that did not extend. They will skip these positions."""

    def drop(self, state: DraftState) -> None:
        """The request with this state has ended, or will be added again with another state."""


class NoDrafter:
    """Speculation off: the same step, without drafts."""

    def draft(self, request: DraftRequest) -> Drafted:
        return Drafted([NO_DRAFT for _ in request.spans])

    def forget(self) -> None:
        pass

    def drop(self, state: DraftState) -> None:
        pass
