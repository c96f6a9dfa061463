"""Exact verification: a draft is accepted if and only if the target chooses the same token there."""

from __future__ import annotations

from collections.abc import Sequence

from nextn.draft import Draft


def accepted_path(draft: Draft, choices: Sequence[int]) -> list[int]:
    """The accepted nodes, from the root's child down. choices[0] is the target's choice after the root,
    choices[i + 1] its choice after node i. The choice after the last accepted node is the bonus token.

    >>> accepted_path(Draft([5, 6, 7]), [5, 6, 9, 1])             # commits 5, 6 and the bonus 9
    [0, 1]
    >>> accepted_path(Draft([5, 6, 7], [-1, -1, 1]), [6, 0, 7, 8])   # commits 6, 7 and the bonus 8
    [1, 2]
    """
    assert len(choices) == len(draft.tokens) + 1
    if draft.parents is None:
        accepted = 0
        for token, choice in zip(draft.tokens, choices, strict=False):
            if token != choice:
                break
            accepted += 1
        return list(range(accepted))
    path: list[int] = []
    last = -1
    for node, token in enumerate(draft.tokens):  # children come after their parents
        if draft.parent(node) == last and token == choices[last + 1]:
            path.append(node)
            last = node
    return path
