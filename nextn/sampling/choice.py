"""The inputs of the choice of one token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nextn.constraint import Allowed, GrammarCursor
from nextn.ops.base import DrawParams
from nextn.request import SamplingParams


class SampledRequest(Protocol):
    """The fields of a request on which the choice of its tokens depends."""

    @property
    def params(self) -> SamplingParams: ...
    @property
    def history(self) -> Sequence[int]: ...  # committed tokens
    @property
    def num_prompt(self) -> int: ...
    @property
    def end_ids(self) -> frozenset[int]: ...  # end tokens; forbidden before min_tokens
    @property
    def grammar(self) -> GrammarCursor | None: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """The inputs of the choice of one token, without its logits. The token gets the position `index`."""

    params: SamplingParams
    tokens: Sequence[int]  # committed tokens of the request
    path: Sequence[int]  # drafts after these, assumed to be accepted
    num_prompt: int
    end_ids: frozenset[int]
    allowed: Allowed | None = None  # tokens that the request's grammar allows; None: all

    @property
    def index(self) -> int:
        return len(self.tokens) + len(self.path)

    @property
    def draw(self) -> DrawParams:
        return draw_params(self.params, self.index)


def choice_after(
    request: SampledRequest, new: Sequence[int], path: Sequence[int], params: SamplingParams
) -> Choice:
    """new: tokens committed after `history`; the grammar has been advanced over them. path: guesses after
    these."""
    allowed = None if request.grammar is None else request.grammar.allowed(path)
    return Choice(params, request.history, (*new, *path), request.num_prompt, request.end_ids, allowed)


def draw_params(params: SamplingParams, position: int, rows: int = 1) -> DrawParams:
    p = params
    return DrawParams(p.seed, p.stream, position, p.temperature, p.top_p, p.min_p, p.top_k, rows)
