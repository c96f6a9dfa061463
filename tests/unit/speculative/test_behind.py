"""What the draft layer has not seen comes back whole, in order and in pieces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative import behind
from nextn.speculative.behind import Behind
from nextn.speculative.committed import Committed


def committed(rid, start, rows, extend=False):
    """Of rows whose hidden state is (request, position); the token after position p is p + 1."""
    following = [start + i + 1 for i in range(len(rows))]
    return Committed(rid, start, rows, following, [1], 0, [], [], extend=extend)


@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=12),
    piece=st.integers(1, 9),
)
def test_all_of_it_in_order(steps, piece):
    kept = Behind(16)
    at = [10, 200, 3000]
    first = list(at)
    for sizes in steps:
        states, work = [], []
        for request, n in enumerate(sizes):
            # The rows of a step lie anywhere; between them are rejected ones.
            work.append(committed(str(request), at[request], [len(states) + 2 * i for i in range(n)]))
            for i in range(n):
                states += [(request, at[request] + i), (-1, -1)]
            at[request] += n
        kept.keep(torch.tensor(states), work)
    asked = [committed(str(i), at[i], [0], extend=True) for i in (2, 0)]
    whole, behind.PIECE = behind.PIECE, piece
    try:
        pieces = list(kept.pieces(asked))
    finally:
        behind.PIECE = whole
    got = []
    for spans, states in pieces:
        assert sum(len(s.tokens) for s in spans) == len(states) <= piece
        positions = [s.start + i for s in spans for i in range(len(s.tokens))]
        assert [p + 1 for p in positions] == [t for s in spans for t in s.tokens]
        assert states[:, 1].tolist() == positions
        got += [tuple(row) for row in states.tolist()]
    assert got == [(i, p) for i in (2, 0) for p in range(first[i], at[i])]
    assert len(kept) == 1
    assert list(kept.pieces(asked)) == []
    kept.drop(["1", "nobody"])
    assert not len(kept)


def test_a_gap_is_noticed():
    kept = Behind(16)
    kept.keep(torch.zeros(4, 2), [committed("a", 5, [0, 1])])
    with pytest.raises(AssertionError, match="a gap before 8"):
        kept.keep(torch.zeros(4, 2), [committed("a", 8, [0])])
    with pytest.raises(AssertionError, match="a gap before 6"):
        list(kept.pieces([committed("a", 6, [0], extend=True)]))


def test_the_first_step_of_one_beside_others_is_kept_once():
    """Its prompt, its first token in a step that others decode in, and what follows: nothing is missing."""
    kept = Behind(16)

    def states(request, first, count):
        return torch.tensor([(request, first + i) for i in range(count)])

    def part(rid, start, rows, chosen):
        following = [start + i + 1 for i in range(len(rows))]
        return Committed(rid, start, rows, following, [1], 0, [], chosen, extend=False)

    other = 50
    kept.keep(states(1, other, 1), [part("1", other, [0], [5])])
    kept.keep(states(0, 0, 7), [part("0", 0, range(7), [])])
    for at in range(7, 10):
        other += 1
        both = torch.cat([states(1, other, 1), states(0, at, 1)])
        kept.keep(both, [part("1", other, [0], [5]), part("0", at, [1], [5])])
    [(spans, found)] = list(kept.pieces([part("0", 10, [0], [5])]))
    assert [s.start for s in spans] == [0]
    assert found.tolist() == [[0, p] for p in range(10)]
