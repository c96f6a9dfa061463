"""Typical: SGLang's rule, case by case; at thresholds of 1 every case adds up to the target."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nextn.draft import Draft
from nextn.speculative.verify import typical

P = torch.tensor([[0.6, 0.3, 0.1, 0.0], [0.2, 0.2, 0.5, 0.1], [0.25, 0.25, 0.25, 0.25]])


def verify(drafts, parents, coins, single=1.0, acc=1.0, p=P):
    return typical.verify(p[: len(drafts) + 1], Draft(drafts, parents), coins, single, acc)


@pytest.mark.parametrize(
    ("drafts", "coin", "single", "acc", "holds"),
    [
        ([1], 0.31, 1.0, 1.0, []),
        ([1], 0.3, 1.0, 1.0, [0]),
        ([1], 0.31, 1.0, 0.5, [0]),  # 0.3 / 0.5
        ([1], 0.61, 1.0, 0.5, []),
        ([1], 0.99, 0.3, 1.0, [0]),  # likely enough by itself
        ([2], 0.99, 0.3, 1.0, []),
        ([0, 1], 0.85, 1.0, 1.0, [1]),  # siblings add up
        ([1, 2], 0.41, 1.0, 1.0, []),
        ([0, 1], 0.95, 0.3, 1.0, [0]),
        ([0, 1], 0.99, 0.7, 0.5, [0]),
        ([2], 0.99, 1.0, 0.0, [0]),  # no division by 0
    ],
)
def test_the_rule(drafts, coin, single, acc, holds):
    path, final = verify(drafts, [-1] * len(drafts), [coin], single, acc)
    assert list(path) == holds
    node = holds[0] + 1 if holds else 0
    want = P[node].double()
    if not holds:
        want[drafts] = 0.0  # tried in vain
    assert torch.equal(final, want)


def test_a_chain_takes_a_coin_a_depth():
    assert list(verify([0, 2], None, [0.6, 0.5]).path) == [0, 1]
    assert list(verify([0, 2], None, [0.6, 0.51]).path) == [0]
    assert list(verify([0, 2], None, [0.61, 0.1]).path) == []


def test_children_of_the_node_that_holds_are_tried_next():
    """Two drafts after the root, a child of the second."""
    p = torch.cat((P, torch.tensor([[0.0, 0.0, 0.0, 1.0]])))
    path, final = verify([0, 1, 3], [-1, -1, 1], [0.7, 0.2], p=p)
    assert list(path) == [1, 2]
    assert final.tolist() == [0.0, 0.0, 0.0, 1.0]
    path, final = verify([0, 1, 3], [-1, -1, 1], [0.5, 0.2], p=p)
    assert list(path) == [0]  # the first has no children, so all of its distribution is drawn from
    assert torch.equal(final, p[1].double())


@pytest.mark.parametrize("drafts", [[0, 1, 2, 0], [2, 1, 1, 3]])
def test_thresholds_of_one_leave_the_distribution(drafts: list[int]) -> None:
    """Tree: two drafts after the root, two after the first of them. Probabilities are twentieths, so twenty
    coins in the middle of each go through every case."""
    steps = 20
    gen = torch.Generator().manual_seed(5)
    p = torch.stack(
        [torch.randint(0, 4, (steps,), generator=gen).bincount(minlength=4) / steps for _ in range(5)]
    )
    parents = [-1, -1, 0, 0]
    target: Tensor = p[0].double()[:, None] * 0.25 * torch.ones(4, dtype=torch.float64)
    target[drafts[0]] = p[0, drafts[0]].double() * p[1].double()
    joint = torch.zeros(4, 4, dtype=torch.float64)
    for a in range(steps):
        for b in range(steps):
            coins = [(a + 0.5) / steps, (b + 0.5) / steps]
            path, final = verify(drafts, parents, coins, p=p)
            final = final / final.sum()
            if not path:
                # The target goes on: as in row 1 after the first draft, evenly after any other token.
                assert final[drafts[0]] == 0
                joint += final[:, None] * 0.25 / steps**2
            elif path[0] == 1:
                assert len(path) == 1
                joint[drafts[1]] += 0.25 / steps**2
            elif len(path) == 1:
                joint[drafts[0]] += final / steps**2
            else:
                joint[drafts[0], drafts[path[1]]] += 1 / steps**2
    torch.testing.assert_close(joint, target, rtol=0, atol=1e-6)


def test_lower_thresholds_do_not():
    """Half a threshold of 0.5 doubles the drafts' share: 0.6 instead of 0.3."""
    held = sum(list(verify([1], None, [(i + 0.5) / 10], acc=0.5).path) == [0] for i in range(10))
    assert held == 6
