"""Draft trees: the worked example, and what must hold of any tree however it was grown and cut."""

from __future__ import annotations

import itertools
import math

from hypothesis import given, settings
from hypothesis import strategies as st

from nextn.draft import Draft, tree_size
from nextn.speculative.tree import Growing

X, Y, Z = 7, 8, 9
EXAMPLE = Draft([X, Y, Z], [-1, -1, 1])


def test_worked_example() -> None:
    assert EXAMPLE.paths() == [[0], [0, 1], [0, 2], [0, 2, 3]]
    assert EXAMPLE.path(2) == [1, 2]
    assert EXAMPLE.path(-1) == []
    assert EXAMPLE.depth == 2


def test_a_chain() -> None:
    chain = Draft([1, 2, 3])
    assert chain.paths() is None
    assert chain.path(2) == [0, 1, 2]
    assert (chain.depth, len(chain), Draft().depth) == (3, 3, 0)
    assert chain.cut(2, 9) == chain.cut(9, 2) == Draft([1, 2])
    assert chain.cut(3, 3) is chain
    assert chain.cut(-1, 3) == chain.cut(3, -1) == Draft([])


def test_cut() -> None:
    assert EXAMPLE.cut(9, 1) == Draft([X, Y], [-1, -1])
    assert EXAMPLE.cut(1, 2) == Draft([X], [-1])
    assert Draft([1, 2, 3, 4], [-1, 0, -1, 2], [0.0, -1.0, -2.0, -3.0]).cut(3, 1) == Draft(
        [1, 3], [-1, -1], [0.0, -2.0]
    )


def grown(topk: int, steps: int, levels: list[float]) -> Growing:
    """Log-probabilities taken from `levels` in turn, so that equal ones are common."""
    numbers = itertools.cycle(levels)
    tokens = itertools.count(100)
    tree = Growing(topk)
    for _ in range(steps):
        tree.grow([[(next(tokens), next(numbers)) for _ in range(topk)] for _ in tree.frontier])
    return tree


trees = st.builds(
    grown,
    st.integers(1, 4),
    st.integers(1, 4),
    st.lists(st.sampled_from([0.0, -0.1, -0.5, -1.0, -3.0, -math.inf]), min_size=1, max_size=11),
)


@settings(max_examples=80, derandomize=True, deadline=None)
@given(trees, st.integers(0, 40))
def test_the_likeliest_nodes_are_a_tree(tree: Growing, nodes: int) -> None:
    draft = tree.best(nodes)
    assert len(draft) == min(nodes, len(tree.tokens))
    assert all(draft.parent(i) < i for i in range(len(draft)))
    assert draft.logprobs is not None
    assert list(draft.logprobs) == sorted(draft.logprobs, reverse=True)
    left = set(tree.tokens) - set(draft.tokens)
    least = min(draft.logprobs, default=0.0)
    assert all(tree.scores[tree.tokens.index(t)] <= least for t in left)
    for node, token in enumerate(draft.tokens):  # every node hangs where it grew
        assert [draft.tokens[i] for i in draft.path(node)] == tree.path(tree.tokens.index(token))


@settings(max_examples=80, derandomize=True, deadline=None)
@given(trees, st.integers(0, 40), st.integers(0, 40), st.integers(0, 5))
def test_cutting_leaves_a_tree(tree: Growing, nodes: int, keep: int, depth: int) -> None:
    whole = tree.best(nodes)
    draft = whole.cut(keep, depth)
    assert len(draft) <= keep
    assert draft.depth <= depth
    for node, token in enumerate(draft.tokens):
        above = [draft.tokens[i] for i in draft.path(node)]
        assert above == [whole.tokens[i] for i in whole.path(list(whole.tokens).index(token))]


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.integers(1, 4), st.integers(1, 5))
def test_how_large_a_tree_may_be(topk: int, steps: int) -> None:
    assert len(grown(topk, steps, [-0.1]).tokens) == tree_size(topk, steps)


def test_one_branch_is_a_chain() -> None:
    draft = grown(1, 4, [-0.1, -0.2]).best(4)
    assert draft.parents is None
    assert list(draft.tokens) == [100, 101, 102, 103]
