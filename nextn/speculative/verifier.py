"""Decides what each request of a step commits, in the request's verify mode.

`exact` needs only the target's choices. The other modes need its probabilities. `rejection` and `block` also
need the drafter's, which are kept from the step that makes a draft to the step that verifies it.
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
    """chances: for each draft, the probabilities from which it was drawn, [V]; only for the modes that need
    them."""

    request: SampledRequest
    draft: Draft
    chances: Sequence[Tensor] = ()

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def position(self) -> int:
        """The position of the first token to choose."""
        return len(self.request.history)

    @property
    def penalized(self) -> bool:
        return penalized(self.params, self.position - self.request.num_prompt)

    @property
    def takes_draws(self) -> bool:
        """Whether it needs only the tokens that `draws` choose, and no logits."""
        return self.params.tokens_alone and not self.penalized

    def draws(self) -> list[DrawParams]:
        """The draws for the target's choices after the root and after every node."""
        params, n = self.params, self.position
        if self.draft.parents is None:
            return [draw_params(params, n, len(self.draft.tokens) + 1)]
        return [draw_params(params, n + depth) for depth in (0, *self.draft.depths())]


class Verified(NamedTuple):
    path: Sequence[int]  # the accepted nodes, from the root's child down
    tokens: list[int]  # their tokens, and the target's own token after them
    ended: bool = False  # the request's grammar is complete
    error: Failure | None = None  # why the request cannot continue


NO_CHOICE = Failure(NOT_FINITE, "the model's logits are not finite")


class Verifier:
    def __init__(self, draw: Draw, accept_length: float | None = None) -> None:
        """accept_length: simulated, for requests verified by `exact`."""
        self.draw, self.accept_length = draw, accept_length

    def verify(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        """logits: after the root and after every node, for one span after the other; may be overwritten. Call
        `grammatical` on the results."""
        sampled = [i for i, span in enumerate(spans) if span.request.params.verify_mode != "exact"]
        if not sampled:
            return self._exact(logits, spans)
        if len(sampled) == len(spans):
            return self._sampled(logits, spans)
        exact = [i for i, span in enumerate(spans) if span.params.verify_mode == "exact"]
        found: dict[int, Verified] = {}
        for some, verify in ((sampled, self._sampled), (exact, self._exact)):
            part = logits[_places(spans, some, logits.device)]
            found |= zip(some, verify(part, [spans[i] for i in some]), strict=True)
        return [found[i] for i in range(len(spans))]

    def _exact(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        return self.equal(spans, self._chosen(logits, spans))

    def _sampled(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[Verified]:
        p = probabilities(logits, [c for span in spans for c in _choices(span)])
        return self._by_probabilities(spans, p.split([len(span.draft) + 1 for span in spans]))

    def _chosen(self, logits: Tensor, spans: Sequence[VerifySpan]) -> list[int]:
        """The target's choices after the root and after every node, for one span after the other."""
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
        """Verifies spans by `exact`. chosen: the target's choices after the root and after every node, for
        one span after the other."""
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

    def _by_probabilities(self, spans: Sequence[VerifySpan], p: Sequence[Tensor]) -> list[Verified]:
        """p: for each span the target's probabilities, [nodes + 1, V]."""
        thrown = coins([_key(span, span.draft.depth) for span in spans])
        verdicts = [self._verdict(*each) for each in zip(spans, p, thrown, strict=True)]
        keys = [_key(span, len(v.path) + 1) for span, v in zip(spans, verdicts, strict=True)]
        finals = draw(FINAL, torch.stack([v.final for v in verdicts]), keys)
        return [
            _verified(span.draft, v.path, final)
            for span, v, final in zip(spans, verdicts, finals, strict=True)
        ]

    def _verdict(self, span: VerifySpan, p: Tensor, coins: Sequence[float]) -> Verdict:
        """coins: a uniform random number for each depth."""
        draft, mode, asked = span.draft, span.params.verify_mode, span.params.speculative
        if mode == "typical":
            assert asked.accept_threshold_single is not None, "the engine fills in its own"
            assert asked.accept_threshold_acc is not None
            return typical.verify(p, draft, coins, asked.accept_threshold_single, asked.accept_threshold_acc)
        assert draft.parents is None, "chains only"
        q = torch.stack([*span.chances[: len(draft)]]) if len(draft) else p[:0]
        return WITH_DRAFT_PROBABILITIES[mode](p, q, draft.tokens, coins)


def _places(spans: Sequence[VerifySpan], which: Sequence[int], device: torch.device) -> Tensor:
    """The rows of some spans in the logits of all spans."""
    ends = list(accumulate(len(span.draft) + 1 for span in spans))
    places = [at for i in which for at in range(ends[i] - len(spans[i].draft) - 1, ends[i])]
    return torch.tensor(places, device=device)


def _key(span: VerifySpan, depth: int) -> DrawKey:
    return DrawKey(span.params.seed, span.params.stream, span.position - 1, depth)


def _verified(draft: Draft, path: Sequence[int], final: int) -> Verified:
    """final: the target's own token after the nodes of the path, or NO_TOKEN. If the span had a draft,
    NO_TOKEN is not an error yet. A NaN in a draft node also reaches rows that do not attend to it, because
    attention multiplies its values by 0. So the request continues from the accepted tokens, and if there are
    none, its next span has no draft."""
    tokens = [draft.tokens[node] for node in path]
    if final == NO_TOKEN:
        return Verified(path[:-1], tokens, error=None if draft.tokens else NO_CHOICE)
    return Verified(path, [*tokens, final])


def grammatical(grammar: GrammarCursor, verified: Verified) -> Verified:
    """Advances the grammar over the verified tokens. If the text becomes complete, tokens after that are
    dropped, and an error after that is ignored."""
    took = grammar.commit(verified.tokens)
    error = None if took.ended else verified.error
    if took.error is not None:
        error = Failure(GRAMMAR_ERROR, took.error)
    elif error is NO_CHOICE and (why := grammar.stuck()) is not None:
        error = Failure(GRAMMAR_ERROR, why)
    path = verified.path[: max(0, took.kept - 1)]
    return Verified(path, verified.tokens[: took.kept], took.ended, error)


def _choices(span: VerifySpan) -> list[Choice]:
    """The choices after the root and after each node of the draft."""
    tokens, params = span.draft.tokens, span.params
    paths = ([tokens[i] for i in span.draft.path(node)] for node in range(-1, len(tokens)))
    return [choice_after(span.request, (), path, params) for path in paths]
