"""What each request of a step commits, in its own verify mode.

`exact` asks for the target's choices alone. The other modes weigh its probabilities, `rejection` and `block`
those of the drafter too: these are kept from the step that drafts to the one that verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.constraint import GrammarCursor
from nextn.draft import Draft
from nextn.ops.base import NO_TOKEN, Draw, DrawParams
from nextn.request import GRAMMAR_ERROR, NOT_FINITE, Failure, SamplingParams
from nextn.sampling.choice import Choice, SampledRequest, choice_after, draw_params
from nextn.sampling.draws import FINAL, DrawKey, coins, draw
from nextn.sampling.penalties import apply_penalties, penalized
from nextn.sampling.sampler import probabilities
from nextn.speculative.simulate import simulated_path
from nextn.speculative.verify import block, rejection, typical
from nextn.speculative.verify.exact import accepted_path
from nextn.speculative.verify.verdict import Verdict

WITH_DRAFT_PROBABILITIES = {"rejection": rejection.verify, "block": block.verify}


class VerifySpan(NamedTuple):
    """chances: the probabilities that the drafts were drawn from, [V] of each; kept for the modes that weigh
    them."""

    request: SampledRequest
    draft: Draft
    chances: Sequence[Tensor] = ()

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def position(self) -> int:
        """Of the first token to choose."""
        return len(self.request.history)

    @property
    def penalized(self) -> bool:
        return penalized(self.params, self.position - self.request.num_prompt)

    @property
    def takes_draws(self) -> bool:
        """Does it need nothing of the logits but what `draws` choose among them?"""
        return self.params.tokens_alone and not self.penalized

    def draws(self) -> list[DrawParams]:
        """Of the target's choices after the root and after every node."""
        params, n = self.params, self.position
        if self.draft.parents is None:
            return [draw_params(params, n, len(self.draft.tokens) + 1)]
        return [draw_params(params, n + depth) for depth in (0, *self.draft.depths())]


class Verified(NamedTuple):
    path: Sequence[int]  # the nodes of the draft that hold, from the root's child down
    tokens: list[int]  # theirs, and the target's own after them
    ended: bool = False  # the request's grammar is complete
    error: Failure | None = None  # nothing can follow


NO_CHOICE = Failure(NOT_FINITE, "the model's logits are not finite")


class Verifier:
    def __init__(self, draw: Draw, accept_length: float | None = None) -> None:
        """accept_length: simulated, of requests verified by `exact`."""
        self.draw, self.accept_length = draw, accept_length

    def verify(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        """logits: after the root and after every node of each span in turn; may be written over.
        `grammatical` comes next."""
        weighed = [i for i, span in enumerate(spans) if span.request.params.verify_mode != "exact"]
        if not weighed:
            return self._exact(logits, spans)
        if len(weighed) == len(spans):
            return self._weighed(logits, spans)
        exact = [i for i, span in enumerate(spans) if span.params.verify_mode == "exact"]
        found: dict[int, Verified] = {}
        for mine, verify in ((weighed, self._weighed), (exact, self._exact)):
            part = logits[_places(spans, mine, logits.device)]
            found |= zip(mine, verify(part, [spans[i] for i in mine]), strict=True)
        return [found[i] for i in range(len(spans))]

    def _exact(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        return self.equal(spans, self._chosen(logits, spans))

    def _weighed(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        p = probabilities(logits, [c for span in spans for c in _choices(span)])
        return self._weigh(spans, p.split([len(span.draft) + 1 for span in spans]))

    def _chosen(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[int]:
        """The target's choices after the root and after every node of each span in turn."""
        draws: list[DrawParams] = []
        at = 0
        for span in spans:
            nodes = len(span.draft.tokens) + 1
            if span.penalized:
                apply_penalties(logits[at : at + nodes], _choices(span))
            draws += span.draws()
            at += nodes
        return self.draw(logits, draws)

    def equal(self, spans: Sequence[VerifySpan], chosen: Sequence[int]) -> list[Verified]:
        """chosen: the target's choices after the root and after every node of each span in turn, all of them
        verified by `exact`."""
        verified = []
        at = 0
        for span in spans:
            draft = span.draft
            own = chosen[at : at + len(draft.tokens) + 1]
            at += len(own)
            if self.accept_length is None:
                path = accepted_path(draft, own)
            else:
                path = simulated_path(draft, self.accept_length, span.params, span.position)
            verified.append(_verified(draft, path, own[path[-1] + 1 if path else 0]))
        return verified

    def _weigh(self, spans: Sequence[VerifySpan], p: Sequence[Tensor]) -> list[Verified]:
        """p [nodes + 1, V] of each span: the target's."""
        thrown = coins([_key(span, span.draft.depth) for span in spans])
        verdicts = [self._verdict(*each) for each in zip(spans, p, thrown, strict=True)]
        keys = [_key(span, len(v.path) + 1) for span, v in zip(spans, verdicts, strict=True)]
        finals = draw(FINAL, torch.stack([v.final for v in verdicts]), keys)
        return [
            _verified(span.draft, v.path, final)
            for span, v, final in zip(spans, verdicts, finals, strict=True)
        ]

    def _verdict(self, span: VerifySpan, p: Tensor, thrown: Sequence[float]) -> Verdict:
        draft, mode, asked = span.draft, span.params.verify_mode, span.params.speculative
        if mode == "typical":
            assert asked.accept_threshold_single is not None, "the engine fills in its own"
            assert asked.accept_threshold_acc is not None
            return typical.verify(p, draft, thrown, asked.accept_threshold_single, asked.accept_threshold_acc)
        assert draft.parents is None, "chains only"
        q = torch.stack([*span.chances[: len(draft)]]) if len(draft) else p[:0]
        return WITH_DRAFT_PROBABILITIES[mode](p, q, draft.tokens, thrown)


def _places(spans: Sequence[VerifySpan], which: Sequence[int], device: torch.device) -> Tensor:
    """Of the logits of all spans, those of some of them."""
    ends = list(accumulate(len(span.draft) + 1 for span in spans))
    places = [at for i in which for at in range(ends[i] - len(spans[i].draft) - 1, ends[i])]
    return torch.tensor(places, device=device)


def _key(span: VerifySpan, depth: int) -> DrawKey:
    return DrawKey(span.params.seed, span.params.stream, span.position - 1, depth)


def _verified(draft: Draft, path: Sequence[int], final: int) -> Verified:
    """final: the target's own token after the nodes of the path, or NO_TOKEN. NO_TOKEN is no error yet if the
    span had a draft: attention multiplies the values of a node by 0 where a row does not see it, so a node
    with NaN spoils these rows too. The request goes on from the tokens that hold. If there are none, its next
    span has no draft."""
    tokens = [draft.tokens[node] for node in path]
    if final == NO_TOKEN:
        return Verified(path[:-1], tokens, error=None if draft.tokens else NO_CHOICE)
    return Verified(path, [*tokens, final])


def grammatical(grammar: GrammarCursor, verified: Verified) -> Verified:
    """Goes on in the grammar. Where the text is complete, what was verified beyond is left out; that
    nothing could be chosen there is no error then."""
    took = grammar.commit(verified.tokens)
    error = None if took.ended else verified.error
    if took.error is not None:
        error = Failure(GRAMMAR_ERROR, took.error)
    elif error is NO_CHOICE and (why := grammar.stuck()) is not None:
        error = Failure(GRAMMAR_ERROR, why)
    path = verified.path[: max(0, took.kept - 1)]
    return Verified(path, verified.tokens[: took.kept], took.ended, error)


def _choices(span: VerifySpan) -> list[Choice]:
    """After the root and after each node of the draft."""
    tokens, params = span.draft.tokens, span.params
    paths = ([tokens[i] for i in span.draft.path(node)] for node in range(-1, len(tokens)))
    return [choice_after(span.request, (), path, params) for path in paths]
