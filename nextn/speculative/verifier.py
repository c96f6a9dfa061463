"""What each row of a step commits, in the row's own verify mode, and the guesses that suit the mode.

`exact` asks for the target's choices alone. The other modes weigh its probabilities, `rejection` and `block`
those of the drafter too: these are kept from the step that drafts to the one that verifies.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from nextn.constraint import GrammarCursor
from nextn.draft import Draft
from nextn.ops.base import NO_TOKEN, Draw, Drawn
from nextn.request import GRAMMAR_ERROR, NOT_FINITE, Failure, SamplingParams
from nextn.sampling.choice import Choice, drawn
from nextn.sampling.draws import DRAFT, FINAL, DrawKey, coins, draw
from nextn.sampling.penalties import apply_penalties, penalized
from nextn.sampling.sampler import choose, probabilities, rank
from nextn.speculative.simulate import simulated_path
from nextn.speculative.verify import block, rejection, typical
from nextn.speculative.verify.exact import accepted_path
from nextn.speculative.verify.verdict import Verdict

WITH_DRAFT_PROBABILITIES = {"rejection": rejection.verify, "block": block.verify}


class VerifySpan(Protocol):
    """One request's root and draft, and what its choices depend on."""

    @property
    def rid(self) -> str: ...
    @property
    def draft(self) -> Draft: ...
    @property
    def params(self) -> SamplingParams: ...
    @property
    def history(self) -> Sequence[int]: ...  # all committed tokens
    @property
    def num_prompt(self) -> int: ...
    @property
    def end_ids(self) -> frozenset[int]: ...
    @property
    def grammar(self) -> GrammarCursor | None: ...  # at the last of `history`


class Verified(NamedTuple):
    path: Sequence[int]  # the nodes of the draft that hold, from the root's child down
    tokens: list[int]  # theirs, and the target's own after them
    ended: bool = False  # the row's grammar is complete
    error: Failure | None = None  # nothing can follow


NO_CHOICE = Failure(NOT_FINITE, "the model's logits are not finite")


class Guess(NamedTuple):
    """A place to draft a token for: after `row`, the tokens `new` that it commits and the guesses `path`."""

    row: VerifySpan
    new: Sequence[int]
    path: Sequence[int]


class Verifier:
    def __init__(self, draw: Draw, accept_length: float | None = None) -> None:
        """accept_length: simulated, of requests verified by `exact`."""
        self.draw, self.accept_length = draw, accept_length
        # Request id -> q of its draft, one row [V] a depth.
        self.kept: dict[str, list[Tensor]] = {}

    def verify(self, logits: Tensor, rows: Sequence[VerifySpan]) -> list[Verified]:
        """logits: after the root and after every node of each row in turn; may be written over. Nothing that
        is kept changes. `grammatical` comes next."""
        found: dict[int, Verified] = {}
        for weighs in (True, False):
            mine = [i for i, row in enumerate(rows) if (row.params.verify_mode != "exact") == weighs]
            if not mine:
                continue
            asked = rows if len(mine) == len(rows) else [rows[i] for i in mine]
            part = logits if asked is rows else logits[_places(rows, mine, logits.device)]
            if weighs:
                choices = [c for row in asked for c in _choices(row)]
                p = probabilities(part, choices).split([len(row.draft) + 1 for row in asked])
                found |= zip(mine, self._weigh(asked, p), strict=True)
            else:
                found |= zip(mine, self._equal(asked, self._chosen(part, asked)), strict=True)
        return [found[i] for i in range(len(rows))]

    def forget(self) -> None:
        """To be called between `verify` and the next `guess`. A request that has a draft is in the next step
        or loses it: what is left by then is of requests that were aborted or retracted."""
        self.kept = {}

    def _chosen(self, logits: Tensor, rows: Sequence[VerifySpan]) -> list[int]:
        """The target's choices after the root and after every node of each row in turn."""
        draws: list[Drawn] = []
        at = 0
        for row in rows:
            draft, params, n = row.draft, row.params, len(row.history)
            nodes = len(draft) + 1
            if penalized(params, n - row.num_prompt):
                apply_penalties(logits[at : at + nodes], _choices(row))
            if draft.parents is None:
                draws.append(drawn(params, n, nodes))
            else:
                draws += [drawn(params, n + depth) for depth in (0, *draft.depths())]
            at += nodes
        return self.draw(logits, draws)

    def _equal(self, rows: Sequence[VerifySpan], chosen: Sequence[int]) -> list[Verified]:
        """chosen: for each row in turn."""
        verified = []
        at = 0
        for row in rows:
            draft = row.draft
            own = chosen[at : at + len(draft) + 1]
            at += len(own)
            if self.accept_length is None:
                path = accepted_path(draft, own)
            else:
                path = simulated_path(draft, self.accept_length, row.params, len(row.history))
            verified.append(_verified(draft, path, own[path[-1] + 1 if path else 0]))
        return verified

    def _weigh(self, rows: Sequence[VerifySpan], p: Sequence[Tensor]) -> list[Verified]:
        """p [nodes + 1, V] of each row: the target's."""
        thrown = coins([_key(row, 0, row.draft.depth) for row in rows])
        verdicts = [self._verdict(*each) for each in zip(rows, p, thrown, strict=True)]
        keys = [_key(row, 0, len(v.path) + 1) for row, v in zip(rows, verdicts, strict=True)]
        finals = draw(FINAL, torch.stack([v.final for v in verdicts]), keys)
        return [
            _verified(row.draft, v.path, final) for row, v, final in zip(rows, verdicts, finals, strict=True)
        ]

    def _verdict(self, row: VerifySpan, p: Tensor, thrown: Sequence[float]) -> Verdict:
        draft, mode, asked = row.draft, row.params.verify_mode, row.params.speculative
        if mode == "typical":
            assert asked.accept_threshold_single is not None, "the engine fills in its own"
            assert asked.accept_threshold_acc is not None
            return typical.verify(p, draft, thrown, asked.accept_threshold_single, asked.accept_threshold_acc)
        assert draft.parents is None, "chains only"
        q = torch.stack(self.kept[row.rid][: len(draft)]) if len(draft) else p[:0]
        return WITH_DRAFT_PROBABILITIES[mode](p, q, draft.tokens, thrown)

    def drawn(self, row: VerifySpan, new: Sequence[int], count: int) -> tuple[Drawn, bool]:
        """How to draw so many guesses after the tokens `new` that the row commits, and whether that is all
        that `guess` would do with the drafter's logits."""
        params, n = row.params, len(row.history) + len(new)
        enough = params.verify_mode not in WITH_DRAFT_PROBABILITIES and not penalized(
            params, n - row.num_prompt
        )
        return drawn(_for_guesses(params), n, count), enough

    def guess(self, logits: Tensor, guesses: Sequence[Guess], k: int) -> list[list[tuple[int, float]]]:
        """The k guesses of each row of the drafter's logits, best first, see `drafter.ChooseDraft`.
        Where it raises, nothing has been kept.

        `exact`: by the noise that the target will choose with. `typical`: by probability, as the target's
        coin asks for nothing else. `rejection`, `block`: drawn, with noise that nothing else sees.
        """
        logits = logits[: len(guesses)]
        modes = [g.row.params.verify_mode for g in guesses]
        drawn = [i for i, mode in enumerate(modes) if mode in WITH_DRAFT_PROBABILITIES]
        others = [i for i, mode in enumerate(modes) if mode not in WITH_DRAFT_PROBABILITIES]
        found: dict[int, list[tuple[int, float]]] = {}
        q: Sequence[Tensor] | Tensor = ()
        if drawn:
            assert k == 1
            part = logits[torch.tensor(drawn, device=logits.device)]
            q = probabilities(part, [_guessed(guesses[i]) for i in drawn])
            keys = [_key(g.row, len(g.new), len(g.path) + 1) for g in (guesses[i] for i in drawn)]
            tokens = draw(DRAFT, q, keys)
            found |= {i: _single(token) for i, token in zip(drawn, tokens, strict=True)}
        if others:
            part = logits[torch.tensor(others, device=logits.device)] if drawn else logits
            choices = [_guessed(guesses[i]) for i in others]
            if k > 1:
                found |= zip(others, rank(part, choices, k), strict=True)
            else:
                tokens = choose(part, choices, self.draw)
                found |= {i: _single(token) for i, token in zip(others, tokens, strict=True)}
        for i, chances in zip(drawn, q, strict=True):
            if found[i]:
                self.kept.setdefault(guesses[i].row.rid, []).append(chances)
        return [found[i] for i in range(len(guesses))]


def _places(rows: Sequence[VerifySpan], which: Sequence[int], device: torch.device) -> Tensor:
    """Of the logits of all rows, those of some of the rows."""
    ends = list(accumulate(len(row.draft) + 1 for row in rows))
    places = [at for i in which for at in range(ends[i] - len(rows[i].draft) - 1, ends[i])]
    return torch.tensor(places, device=device)


def _key(row: VerifySpan, new: int, depth: int) -> DrawKey:
    """For the step whose root is the last of `new` tokens after the row's."""
    return DrawKey(row.params.seed, row.params.stream, len(row.history) + new - 1, depth)


def _verified(draft: Draft, path: Sequence[int], final: int) -> Verified:
    """final: the target's own token after the nodes of the path, or NO_TOKEN."""
    tokens = [draft.tokens[node] for node in path]
    if final == NO_TOKEN:
        return Verified(path[:-1], tokens, error=NO_CHOICE)
    return Verified(path, [*tokens, final])


def grammatical(grammar: GrammarCursor, verified: Verified) -> Verified:
    """Goes on in the grammar. Where the text is complete, what was verified beyond is left out; that
    nothing could be chosen there is no error then."""
    took = grammar.commit(verified.tokens)
    error = None if took.ended else verified.error
    if took.error is not None:
        error = Failure(GRAMMAR_ERROR, took.error)
    path = verified.path[: max(0, took.kept - 1)]
    return Verified(path, verified.tokens[: took.kept], took.ended, error)


def _single(token: int) -> list[tuple[int, float]]:
    """The one guess, if there is one."""
    return [] if token == NO_TOKEN else [(token, 0.0)]


def _choice(row: VerifySpan, new: Sequence[int], path: Sequence[int], params: SamplingParams) -> Choice:
    """After the row, tokens that it has just committed and guesses."""
    allowed = None if row.grammar is None else row.grammar.allowed(path)
    return Choice(params, row.history, (*new, *path), row.num_prompt, row.end_ids, allowed)


def _choices(row: VerifySpan) -> list[Choice]:
    """After the root and after each node of the draft."""
    draft = row.draft
    return [
        _choice(row, (), [draft.tokens[i] for i in draft.path(n)], row.params) for n in range(-1, len(draft))
    ]


def _guessed(guess: Guess) -> Choice:
    return _choice(guess.row, guess.new, guess.path, _for_guesses(guess.row.params))


def _for_guesses(params: SamplingParams) -> SamplingParams:
    """`typical`: the target's coin asks for nothing but probability."""
    return params.replace(temperature=0.0) if params.verify_mode == "typical" else params
