"""One completion token by token, as the server reports it: each step's tokens and rejected drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nextn.draft import Draft

Token = tuple[str, int]  # text, and the depth at which it was drafted (0: not a draft)


class Step(NamedTuple):
    """tokens: the committed tokens of a step. rejected: its rejected drafts."""

    tokens: list[Token]
    rejected: list[Token]


@dataclass(frozen=True)
class Completion:
    prompt: str
    steps: list[Step]

    @classmethod
    def of(cls, prompt: str, choice: Mapping[str, Any]) -> Completion:
        """Makes it from a choice of the answer that has `draft_depths` and `draft_steps`."""
        pieces: list[Token] = [(text, depth) for text, depth in choice["draft_depths"]]
        steps, at = [], 0
        for step in choice["draft_steps"]:
            end = at + step["tokens"]
            steps.append(Step(pieces[at:end], rejected(step)))
            at = end
        return cls(prompt, steps)

    @property
    def tokens(self) -> list[Token]:
        return [token for step in self.steps for token in step.tokens]


def rejected(step: Mapping[str, Any]) -> list[Token]:
    """The rejected drafts of an entry of `draft_steps`.

    >>> rejected({"drafts": ["a", "b", "c"], "accepted": [0]})
    [('b', 2), ('c', 3)]
    >>> rejected({"drafts": ["a", "b", "c"], "accepted": [1], "parents": [-1, -1, 1]})
    [('a', 1), ('c', 2)]
    """
    drafts = step["drafts"]
    depths = Draft(drafts, step.get("parents")).depths()
    drafted = zip(drafts, depths, strict=True)
    return [draft for i, draft in enumerate(drafted) if i not in step["accepted"]]
