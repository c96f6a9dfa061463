"""A draft as plain data: a tree of guessed tokens below a request's root. A chain is a tree with one branch.

Worked example: the drafter guesses "x" or "y" after the root, and "z" after "y":

    tokens   x   y   z           to verify: the span root x y z, in slots 0 1 2 3
    parents -1  -1   1           paths: [0] [0 1] [0 2] [0 2 3]

Slots are counted from the root's. If the target chooses y after the root and w after y, then y is accepted
and w is the bonus token. The cache entry of y is moved from slot 2 to slot 1, the slot of its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

MAX_DRAFTS = 16  # maximum draft depth
AUTO_STEPS = -1  # in place of a draft depth: automatic depth
MAX_AUTO_STEPS, MAX_AUTO_TREE_STEPS = 8, 4  # maximum automatic depth of chains and of trees
# When a request drafts again after steps without drafts, the draft layer first runs over this number of last
# positions, and skips earlier ones. With nextn-tiny, chains are then up to a tenth shorter for some time.
DRAFT_WINDOW = 64
MAX_TOPK = 32


def draft_window(page_size: int) -> int:
    """DRAFT_WINDOW, or a page if that is larger, because the draft layer skips whole pages."""
    return max(DRAFT_WINDOW, page_size)


@dataclass(slots=True, unsafe_hash=True)  # frozen ones take three times as long to make
class Draft:
    """Nodes come parents first and, in a tree, likelier ones first. So the first n nodes are a draft too."""

    tokens: Sequence[int] = ()
    parents: Sequence[int] | None = None  # each node's parent, -1 for the root; None: a chain
    logprobs: Sequence[float] | None = None  # in a tree: the drafter's log-probability of each node's path
    # In a chain with a cutoff (`nextn.cutoff`): the confidence bin of each guess that was made, also of a
    # last guess that was not kept.
    bins: bytes = b""
    forced: bool = False  # the grammar allows only these tokens; they say nothing about the drafter's quality

    def __len__(self) -> int:
        return len(self.tokens)

    def parent(self, node: int) -> int:
        return node - 1 if self.parents is None else self.parents[node]

    def path(self, node: int) -> list[int]:
        """Nodes from a child of the root down to `node`; [] for -1, the root itself."""
        found = []
        while node >= 0:
            found.append(node)
            node = self.parent(node)
        return found[::-1]

    @property
    def depth(self) -> int:
        """Depth of the deepest node; 0 without nodes."""
        return len(self.tokens) if self.parents is None else max(self.depths(), default=0)

    def depths(self) -> list[int]:
        """The depth of each node; children of the root have depth 1."""
        if self.parents is None:
            return list(range(1, len(self.tokens) + 1))
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent < 0 else depths[parent] + 1)
        return depths

    def follow(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that have these tokens, from the root down. Stops at the first token without a node.

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
        """The paths of the span [root, nodes ...], for `nextn.layers.batch.Span`; None: a chain."""
        if self.parents is None:
            return None
        paths = [[0]]
        for node, parent in enumerate(self.parents):
            paths.append([*paths[parent + 1], node + 1])
        return paths

    def cut(self, nodes: int, depth: int) -> Draft:
        """The draft without nodes deeper than `depth`, and at most the first `nodes` of the others."""
        n = len(self.tokens)
        if self.parents is None and n <= nodes and n <= depth:  # the usual case
            return self
        depths = self.depths()
        return self.keep([i for i in range(n) if depths[i] <= depth][: max(0, nodes)])

    def keep(self, nodes: Sequence[int]) -> Draft:
        """The draft of these nodes, in order. The parent of each must be among them."""
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
    """The shape of an engine's draft trees, the same for all requests. Only the depth differs."""

    topk: int = 1
    nodes: int = 0  # maximum number of nodes of a tree, without the root; unused for chains

    def size(self, num_steps: int) -> int:
        """Number of nodes of a draft of this depth."""
        return num_steps if self.topk == 1 else min(self.nodes, tree_size(self.topk, num_steps))

    def scratch(self, num_steps: int) -> int:
        """Slots that the drafter writes for such a draft: for the nodes of all depths but the last."""
        return (num_steps - 1) * self.topk if num_steps > 1 else 0

    @property
    def beyond(self) -> int:
        """Slots that trees may use after a request's last position: a tree has more nodes than depths."""
        return 0 if self.topk == 1 else max(self.nodes, self.scratch(MAX_DRAFTS))


def tree_size(topk: int, num_steps: int) -> int:
    """Maximum nodes of a tree: topk children of the root, and topk * topk nodes at each further depth."""
    return topk + (num_steps - 1) * topk * topk if num_steps > 0 else 0
