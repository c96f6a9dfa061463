"""N-gram guesses (prompt lookup): the tokens that followed the last time the request's text ended like this.

Code, quotations and summaries often repeat parts of the prompt or the output. The longest suffix of
`longest` down to `shortest` tokens that occurred before is used. The guess is the tokens after its latest
earlier occurrence. A guess may continue into itself: if a text repeats with period p, so does the guess.
"""

from __future__ import annotations

from collections.abc import Sequence

LONGEST, SHORTEST = 4, 2


def lookup(
    tokens: Sequence[int], num_steps: int, longest: int = LONGEST, shortest: int = SHORTEST
) -> list[int]:
    """At most `num_steps` tokens that may follow; empty if no suffix occurred before.

    >>> lookup([7, 8, 9, 1, 7, 8], num_steps=3)
    [9, 1, 7]
    """
    index = NGramIndex(longest, shortest)
    index.extend(tokens)
    return index.guess(num_steps)


class NGramIndex:
    """One request's tokens and, for every n-gram, where its last occurrence ended. Contains committed tokens
    only, so nothing is ever removed. Memory: at most `longest - shortest + 1` entries per token."""

    def __init__(self, longest: int = LONGEST, shortest: int = SHORTEST) -> None:
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams of {shortest} to {longest} tokens: need 1 <= shortest <= longest")
        self.tokens: list[int] = []
        self._sizes = range(longest, shortest - 1, -1)
        # n-gram -> index of the token after its last occurrence; the suffix of `tokens` is not in it yet
        self._after: dict[int, dict[tuple[int, ...], int]] = {n: {} for n in self._sizes}

    def extend(self, tokens: Sequence[int]) -> None:
        """The request has committed `tokens`."""
        old = len(self.tokens)
        self.tokens += tokens
        text = self.tokens
        for n, after in self._after.items():
            for end in range(max(old, n), len(text)):
                after[tuple(text[end - n : end])] = end

    def find(self) -> tuple[int, int]:
        """Length of the longest suffix that occurred before, and index of the token after it; or (0, 0)."""
        text = self.tokens
        for n in self._sizes:
            if n < len(text):
                at = self._after[n].get(tuple(text[-n:]))
                if at is not None:
                    return n, at
        return 0, 0

    def following(self, at: int, num_steps: int) -> list[int]:
        """The guess that the tokens from index `at` on will be repeated."""
        period = len(self.tokens) - at
        return [self.tokens[at + i % period] for i in range(num_steps)]

    def guess(self, num_steps: int) -> list[int]:
        length, at = self.find()
        return self.following(at, num_steps) if length else []
