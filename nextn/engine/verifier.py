"""What each row of a step commits, in the row's own verify mode, and the guesses that suit the mode.

`exact` asks for the target's choices alone. The other modes weigh its probabilities, `rejection` and `block`
those of the drafter too: these are kept from the step that drafts to the one that verifies.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nextn.engine.coins import DRAFT, FINAL, Dice, coins, draw
from nextn.engine.sampler import Choice, Draw, choose, probabilities, rank
from nextn.scheduler.plan import Row
from nextn.speculative.simulate import simulated_path
from nextn.speculative.verify import block, rejection, typical
from nextn.speculative.verify.exact import accepted_path
from nextn.speculative.verify.verdict import Verdict

WITH_DRAFT_PROBABILITIES = {"rejection": rejection.verify, "block": block.verify}


class Verified(NamedTuple):
    path: Sequence[int]  # the nodes of the draft that hold, from the root's child down
    tokens: list[int]  # theirs, and the target's own after them


class Guess(NamedTuple):
    """A place to draft a token for: after `row`, the tokens `new` that it commits and the guesses `path`."""

    row: Row
    new: Sequence[int]
    path: Sequence[int]


class Verifier:
    def __init__(self, draw: Draw, accept_length: float | None = None) -> None:
        """accept_length: simulated, of requests verified by `exact`."""
        self.draw, self.accept_length = draw, accept_length
        # Request id -> q of its draft, one row [V] a depth.
        self.kept: dict[str, list[Tensor]] = {}

    def verify(self, logits: Tensor, rows: Sequence[Row]) -> list[Verified]:
        """logits: after the root and after every node of each row in turn; may be written over."""
        choices = [_choices(row) for row in rows]
        found: dict[int, Verified] = {}
        for weighs in (True, False):
            mine = [i for i, row in enumerate(rows) if (row.params.verify_mode != "exact") == weighs]
            if not mine:
                continue
            asked = [c for i in mine for c in choices[i]]
            part = logits
            if len(mine) < len(rows):
                starts, at = [], 0
                for c in choices:
                    starts.append(at)
                    at += len(c)
                index = [starts[i] + j for i in mine for j in range(len(choices[i]))]
                part = logits[torch.tensor(index, device=logits.device)]
            if weighs:
                p = probabilities(part, asked).split([len(choices[i]) for i in mine])
                found |= zip(mine, self._weigh([rows[i] for i in mine], p), strict=True)
            else:
                tokens = iter(choose(part, asked, self.draw))
                found |= {i: self._equal(rows[i], [next(tokens) for _ in choices[i]]) for i in mine}
        return [found[i] for i in range(len(rows))]

    def forget(self) -> None:
        """To be called between `verify` and the next `guess`. A request that has a draft is in the next step
        or loses it: what is left by then is of requests that were aborted or retracted."""
        self.kept = {}

    def _equal(self, row: Row, chosen: Sequence[int]) -> Verified:
        if self.accept_length is None:
            path = accepted_path(row.draft, chosen)
        else:
            path = simulated_path(row.draft, self.accept_length, row.params, len(row.history))
        final = chosen[path[-1] + 1 if path else 0]
        return Verified(path, [*(row.draft.tokens[node] for node in path), final])

    def _weigh(self, rows: Sequence[Row], p: Sequence[Tensor]) -> list[Verified]:
        """p [nodes + 1, V] of each row: the target's."""
        thrown = coins([_dice(row, 0, row.draft.depth) for row in rows])
        verdicts = [self._verdict(*each) for each in zip(rows, p, thrown, strict=True)]
        dice = [_dice(row, 0, len(v.path) + 1) for row, v in zip(rows, verdicts, strict=True)]
        finals = draw(FINAL, torch.stack([v.final for v in verdicts]), dice)
        return [
            Verified(v.path, [*(row.draft.tokens[i] for i in v.path), final])
            for row, v, final in zip(rows, verdicts, finals, strict=True)
        ]

    def _verdict(self, row: Row, p: Tensor, thrown: Sequence[float]) -> Verdict:
        draft, mode, asked = row.draft, row.params.verify_mode, row.params.speculative
        if mode == "typical":
            assert asked.accept_threshold_single is not None, "the engine fills in its own"
            assert asked.accept_threshold_acc is not None
            return typical.verify(p, draft, thrown, asked.accept_threshold_single, asked.accept_threshold_acc)
        assert draft.parents is None, "chains only"
        q = torch.stack(self.kept[row.rid][: len(draft)]) if len(draft) else p[:0]
        return WITH_DRAFT_PROBABILITIES[mode](p, q, draft.tokens, thrown)

    def guess(self, logits: Tensor, guesses: Sequence[Guess], k: int) -> list[list[tuple[int, float]]]:
        """The k guesses of each row of the drafter's logits, best first, see `drafter.ChooseDraft`.

        `exact`: by the noise that the target will choose with. `typical`: by probability, as the target's
        coin asks for nothing else. `rejection`, `block`: drawn, with noise that nothing else sees.
        """
        logits = logits[: len(guesses)]
        modes = [g.row.params.verify_mode for g in guesses]
        drawn = [i for i, mode in enumerate(modes) if mode in WITH_DRAFT_PROBABILITIES]
        others = [i for i, mode in enumerate(modes) if mode not in WITH_DRAFT_PROBABILITIES]
        found: dict[int, list[tuple[int, float]]] = {}
        if drawn:
            assert k == 1
            part = logits[torch.tensor(drawn, device=logits.device)]
            q = probabilities(part, [_guessed(guesses[i]) for i in drawn])
            dice = [_dice(g.row, len(g.new), len(g.path) + 1) for g in (guesses[i] for i in drawn)]
            for i, chances, token in zip(drawn, q, draw(DRAFT, q, dice), strict=True):
                found[i] = [(token, 0.0)]
                self.kept.setdefault(guesses[i].row.rid, []).append(chances)
        if others:
            part = logits[torch.tensor(others, device=logits.device)] if drawn else logits
            choices = [_guessed(guesses[i]) for i in others]
            if k > 1:
                found |= zip(others, rank(part, choices, k), strict=True)
            else:
                tokens = choose(part, choices, self.draw)
                found |= {i: [(token, 0.0)] for i, token in zip(others, tokens, strict=True)}
        return [found[i] for i in range(len(guesses))]


def _dice(row: Row, new: int, depth: int) -> Dice:
    """For the step whose root is the last of `new` tokens after the row's."""
    return Dice(row.params.seed, row.params.stream, len(row.history) + new - 1, depth)


def _choice(row: Row, path: Sequence[int]) -> Choice:
    return Choice(row.params, row.history, path, row.num_prompt, row.end_ids)


def _choices(row: Row) -> list[Choice]:
    """After the root and after each node of the draft."""
    draft = row.draft
    return [_choice(row, [draft.tokens[i] for i in draft.path(n)]) for n in range(-1, len(draft))]


def _guessed(guess: Guess) -> Choice:
    choice = _choice(guess.row, (*guess.new, *guess.path))
    if choice.params.verify_mode == "typical":
        return dataclasses.replace(choice, params=choice.params.replace(temperature=0.0))
    return choice
