"""Building a draft tree: which guesses to continue from, and which of them to verify.

Trees are built as in EAGLE-2 (arXiv 2406.16858), in SGLang's terms: at each depth, the drafter continues from
the `topk` likeliest of all topk x topk children. Of all nodes, the num_draft_tokens - 1 likeliest are
verified. The likelihood of a node is the product of the drafter's probabilities along its path.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from nextn.draft import Draft


class Growing:
    """A tree while it is drafted; a chain if `topk` is 1. `frontier`: the nodes to continue from, best
    first; empty if no guess could be made."""

    def __init__(self, topk: int) -> None:
        self.topk = topk
        self.tokens: list[int] = []
        self.parents: list[int] = []
        self.scores: list[float] = []
        self.frontier: list[int] = [-1]

    def grow(self, children: Sequence[Sequence[tuple[int, float]]]) -> None:
        """children[j]: (token, log-probability) of the best guesses after frontier node j. Guesses with
        probability 0 or NaN are left out: NaN has no order, so children could come before their parents."""
        first = len(self.tokens)
        for parent, guesses in zip(self.frontier, children, strict=True):
            before = self.scores[parent] if parent >= 0 else 0.0
            for token, logprob in guesses:
                if not logprob > -math.inf:
                    continue
                self.tokens.append(token)
                self.parents.append(parent)
                self.scores.append(before + min(logprob, 0.0))
        # Among equal ones, the earlier one first: it may be an ancestor of the later one.
        new = range(first, len(self.tokens))
        self.frontier = heapq.nlargest(self.topk, new, key=lambda i: (self.scores[i], -i))

    def append(self, token: int) -> None:
        """Adds the next guess of a chain."""
        self.frontier = [len(self.tokens)]
        self.parents.append(len(self.tokens) - 1)
        self.tokens.append(token)
        self.scores.append(0.0)

    def nodes(self, node: int) -> list[int]:
        """From the root's child down to `node`."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parents[node]
        return found[::-1]

    def path(self, node: int) -> list[int]:
        """The tokens of `nodes`."""
        return [self.tokens[i] for i in self.nodes(node)]

    def best(self, nodes: int) -> Draft:
        """The draft of the likeliest `nodes`. A parent is at least as likely as its children, so it comes
        first."""
        order = range(len(self.tokens))
        keep = heapq.nlargest(nodes, order, key=lambda i: (self.scores[i], -i))
        place = {-1: -1} | {old: new for new, old in enumerate(keep)}
        parents = [place[self.parents[i]] for i in keep]
        chain = all(parent == i - 1 for i, parent in enumerate(parents))
        return Draft(
            [self.tokens[i] for i in keep], None if chain else parents, [self.scores[i] for i in keep]
        )
