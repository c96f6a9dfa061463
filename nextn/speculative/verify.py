"""Exact verification: a draft is accepted iff it is the token the target chooses at its place. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def accepted_drafts(drafts: Sequence[int], choices: Sequence[int]) -> int:
    """How many leading drafts equal the target's choices. choices[j] is the target's choice given the
    root and drafts[:j], so len(choices) == len(drafts) + 1 and choices[n] is the bonus token.

    >>> accepted_drafts([5, 6, 7], [5, 6, 9, 1])   # commits 5, 6 and the bonus 9
    2
    """
    assert len(choices) == len(drafts) + 1
    n = 0
    while n < len(drafts) and drafts[n] == choices[n]:
        n += 1
    return n
