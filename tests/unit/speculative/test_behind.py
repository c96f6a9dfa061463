"""What the draft layer has not seen comes back whole, in order and in pieces."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.draft_spans import draft_span

from nextn.speculative import behind
from nextn.speculative.behind import Behind
from nextn.speculative.draft_state import DraftState


def committed(state, start, rows, chosen=(), extend=False):
    """Of rows whose hidden state is (request, position); the token after position p is p + 1."""
    following = [start + i + 1 for i in range(len(rows))]
    return draft_span(start, rows, following, chosen=chosen, extend=extend, state=state)


@given(
    steps=st.lists(st.lists(st.integers(1, 4), min_size=3, max_size=3), min_size=1, max_size=12),
    piece=st.integers(1, 9),
)
def test_all_of_it_in_order(steps, piece):
    kept = Behind(16)
    requests = [DraftState() for _ in range(3)]
    at = [10, 200, 3000]
    first = list(at)
    for sizes in steps:
        states, work = [], []
        for request, n in enumerate(sizes):
            # The rows of a step lie anywhere; between them are rejected ones.
            work.append(committed(requests[request], at[request], [len(states) + 2 * i for i in range(n)]))
            for i in range(n):
                states += [(request, at[request] + i), (-1, -1)]
            at[request] += n
        kept.keep(torch.tensor(states), work)
    asked = [committed(requests[i], at[i], [0], extend=True) for i in (2, 0)]
    whole, behind.PIECE = behind.PIECE, piece
    try:
        pieces = list(kept.pieces(asked))
    finally:
        behind.PIECE = whole
    got = []
    for owners, spans, states in pieces:
        assert [o.pages for o in owners] == [s.pages for s in spans]
        assert sum(len(s.tokens) for s in spans) == len(states) <= piece
        positions = [s.start + i for s in spans for i in range(len(s.tokens))]
        assert [p + 1 for p in positions] == [t for s in spans for t in s.tokens]
        assert states[:, 1].tolist() == positions
        got += [tuple(row) for row in states.tolist()]
    assert got == [(i, p) for i in (2, 0) for p in range(first[i], at[i])]
    assert len(kept) == 1
    assert list(kept.pieces(asked)) == []
    kept.drop(DraftState())
    assert len(kept) == 1
    kept.drop(requests[1])
    assert not len(kept)


def test_a_gap_is_noticed():
    kept, a = Behind(16), DraftState()
    kept.keep(torch.zeros(4, 2), [committed(a, 5, [0, 1])])
    with pytest.raises(AssertionError, match="a gap before 8"):
        kept.keep(torch.zeros(4, 2), [committed(a, 8, [0])])
    with pytest.raises(AssertionError, match="a gap before 6"):
        list(kept.pieces([committed(a, 6, [0], extend=True)]))


def test_the_first_step_of_one_beside_others_is_kept_once():
    """Its prompt, its first token in a step that others decode in, and what follows: nothing is missing."""
    kept = Behind(16)
    zero, one = DraftState(), DraftState()

    def states(request, first, count):
        return torch.tensor([(request, first + i) for i in range(count)])

    other = 50
    kept.keep(states(1, other, 1), [committed(one, other, [0], [5])])
    kept.keep(states(0, 0, 7), [committed(zero, 0, range(7), [])])
    for at in range(7, 10):
        other += 1
        both = torch.cat([states(1, other, 1), states(0, at, 1)])
        kept.keep(both, [committed(one, other, [0], [5]), committed(zero, at, [1], [5])])
    [(_, spans, found)] = list(kept.pieces([committed(zero, 10, [0], [5])]))
    assert [s.start for s in spans] == [0]
    assert found.tolist() == [[0, p] for p in range(10)]
