"""N-gram guesses (prompt lookup): the tokens that followed the last time the request's text ended like this.

Code, quotations and summaries often repeat parts of the prompt or the output. The longest suffix of LONGEST
down to SHORTEST tokens that occurred before is used. The guess is the tokens after its latest earlier
occurrence. A guess may continue into itself: if a text repeats with period p, so does the guess.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2


class NGramIndex:
    """One request's tokens and, for every n-gram, where its last occurrence ended. Contains committed tokens
    only, so nothing is ever removed. Memory: at most LONGEST - SHORTEST + 1 entries per token.

    >>> index = NGramIndex()
    >>> index.extend([7, 8, 9, 1, 7, 8])
    >>> index.guess(num_steps=3)
    ([9, 1, 7], 2)
    """

    def __init__(self) -> None:
        self.tokens: list[int] = []
        # n-gram -> index of the token after its last occurrence; the suffix of `tokens` is not in it yet
        sizes = range(LONGEST, SHORTEST - 1, -1)
        self._after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in sizes}

    def extend(self, tokens: Sequence[int]) -> None:
        """The request has committed `tokens`."""
        old = len(self.tokens)
        self.tokens += tokens
        text = self.tokens
        for n, after in self._after.items():
            for end in range(max(old, n), len(text)):
                after[tuple(text[end - n : end])] = end

    def guess(self, num_steps: int) -> tuple[list[int], int]:
        """(`num_steps` tokens that may follow, length of the longest suffix that occurred before); ([], 0)
        without such a suffix."""
        text = self.tokens
        for n, after in self._after.items():
            if n < len(text):
                at = after.get(tuple(text[-n:]))
                if at is not None:
                    period = len(text) - at
                    return [text[at + i % period] for i in range(num_steps)], n
        return [], 0
