"""A request's draft: a tree of guessed tokens under its root, of which a chain is the one-branch case. Pure.

Worked example: the drafter thinks "x" or "y" follows the root, and after "y" comes "z":

    tokens   x   y   z           the span that is verified: root x y z, at slots 0 1 2 3 from the root's
    parents -1  -1   1           paths: [0] [0 1] [0 2] [0 2 3]

If the target chooses y after the root and w after y, then y is accepted, w is the bonus, and y's cache entry
goes from slot 2 to slot 1, where its position says it belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_DRAFTS = 16  # deepest
AUTO_STEPS = -1  # instead of a number of steps: chosen while it runs
MAX_AUTO_STEPS, MAX_AUTO_TREE_STEPS = 8, 4  # deepest that is chosen automatically, of chains and of trees
# Positions that a request's drafter catches up with when it drafts again after steps without drafts. It does
# not see those before them; with nextn-tiny its chains are then up to a tenth shorter for some dozen tokens.
DRAFT_WINDOW = 64
MAX_TOPK = 32


def draft_window(page_size: int) -> int:
    """DRAFT_WINDOW, or a page if that is larger: the draft layer sees whole ones."""
    return max(DRAFT_WINDOW, page_size)


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make
class Draft:
    """Nodes come with parents before children, in a tree the likelier before the less likely: cutting off
    the end leaves a tree."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None  # each node's parent, -1 for the root; None: a chain
    logprobs: Sequence[float] | None = None  # of each node's path in a tree, by the drafter
    # Of a chain with a cutoff (`nextn.cutoff`): the bin of each guess that was made, of the last one too if
    # it was not worth keeping.
    bins: bytes = b""
    forced: bool = False  # the request's grammar leaves nothing else, so they tell nothing of the drafter

    def __len__(self) -> int:
        return len(self.tokens)

    def parent(self, node: int) -> int:
        return node - 1 if self.parents is None else self.parents[node]

    def path(self, node: int) -> list[int]:
        """Nodes from the root's child down to `node`; [] for -1, the root itself."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parent(node)
        return found[::-1]

    @property
    def depth(self) -> int:
        """Of the deepest node; 0 without nodes."""
        return len(self.tokens) if self.parents is None else max(self.depths(), default=0)

    def depths(self) -> list[int]:
        """Of each node, 1 after the root."""
        if self.parents is None:
            return list(range(1, len(self.tokens) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that spell these tokens, from the root down, as far as there are such nodes.

        >>> Draft([7, 8, 9], [-1, -1, 1]).follow([8, 9, 5])
        [1, 2]
        """
        path: list[int] = []
        last = -1
        for token in tokens:
            nodes = (i for i, t in enumerate(self.tokens) if t == token and self.parent(i) == last)
            last = next(nodes, -1)
            if last < 0:
                break
            path.append(last)
        return path

    def paths(self) -> list[list[int]] | None:
        """Of the span [root, nodes ...] to verify, as `nextn.layers.batch.Span` has them; None: a chain."""
        if self.parents is None:
            return None
        paths = [[0]]
        for node, parent in enumerate(self.parents):
            paths.append([*paths[parent + 1], node + 1])
        return paths

    def cut(self, nodes: int, depth: int) -> Draft:
        """The first `nodes` of those nodes that are no deeper than `depth`."""
        n = len(self.tokens)
        if self.parents is None and n <= nodes and n <= depth:  # as a rule
            return self
        depths = self.depths()
        return self.keep([i for i in range(n) if depths[i] <= depth][: max(0, nodes)])

    def keep(self, nodes: Sequence[int]) -> Draft:
        """These nodes, in order; with each its parent must be among them."""
        if len(nodes) == len(self.tokens):
            return self
        place = {-1: -1} | {old: new for new, old in enumerate(nodes)}
        return Draft(
            [self.tokens[i] for i in nodes],
            None if self.parents is None else [place[self.parents[i]] for i in nodes],
            None if self.logprobs is None else [self.logprobs[i] for i in nodes],
            self.bins[: len(nodes)],
            self.forced,
        )


NO_DRAFT = Draft()


class Shape(NamedTuple):
    """Of the trees that an engine drafts: one for all of its requests, whatever the depth each asks for."""

    topk: int = 1
    nodes: int = 0  # most nodes of a tree, the root not counted; of no account for chains

    def size(self, num_steps: int) -> int:
        """Nodes of a draft of that depth."""
        return num_steps if self.topk == 1 else min(self.nodes, tree_size(self.topk, num_steps))

    def scratch(self, num_steps: int) -> int:
        """Slots that the drafter writes while it drafts so deep: every depth but the last is grown on."""
        return (num_steps - 1) * self.topk if num_steps > 1 else 0

    @property
    def beyond(self) -> int:
        """Slots past a request's last position that its trees may take: a tree is wider than it is deep."""
        return 0 if self.topk == 1 else max(self.nodes, self.scratch(MAX_DRAFTS))


def tree_size(topk: int, num_steps: int) -> int:
    """Nodes that a tree may have: topk children of the root, and topk * topk at each further depth."""
    return topk + (num_steps - 1) * topk * topk if num_steps > 0 else 0
