"""What the draft layer has not seen comes back whole, in order and in pieces."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.draft_spans import draft_span

from nextn.speculative import behind
from nextn.speculative.behind import Behind
from nextn.speculative.draft_state import DraftState


def committed(state, start, rows, chosen=(), extend=False):
    """Of rows whose hidden state is (request, position); the token after position p is p + 1."""
    following = [start + i + 1 for i in range(len(rows))]
    return draft_span(
        start, rows, following, chosen=chosen, extend=extend, state=state, history=range(start + len(rows))
    )


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


@given(seed=st.integers(0, 10_000), floats=st.booleans())
@settings(max_examples=30)
def test_requests_that_come_draft_and_go(seed, floats):
    """What is taken is true, ends where the step begins, and goes back over the window or to where the
    request was last taken."""
    rng, kept, window = random.Random(seed), Behind(16), 64
    live = []  # [state, number, position, first position not taken, prompt tokens left]
    numbers = itertools.count()
    for _ in range(rng.choice([30, 200])):
        if len(live) < 3 and rng.random() < 0.2:
            live.append([DraftState(), next(numbers), 0, 0, rng.randrange(1, 90)])
        if live and rng.random() < 0.05:
            kept.drop(live.pop(rng.randrange(len(live)))[0])
        drafting = rng.random() < 0.1
        hidden, work, asked = [], [], []
        for each in sorted(live, key=lambda each: each[4]):  # those that decode come first
            state, number, at, first, prompt = each
            n = min(prompt, rng.randrange(1, 40)) if prompt else 1 + (rng.random() < 0.03)
            each[4] = max(0, prompt - n)
            rows = range(len(hidden), len(hidden) + n)
            hidden += [(number, at + i) for i in range(n)]
            chosen = () if each[4] else (1,)
            span = committed(state, at, rows, chosen, extend=drafting and not prompt)
            if span.extend:
                asked.append((span, each))
                each[3] = at + n
            else:
                work.append(span)
            each[2] += n
            each.append((at, first))
        states = torch.tensor(hidden, dtype=torch.float32 if floats else torch.int64)
        if work:
            kept.keep(states, work)
        expected = [(each[1], *each.pop()) for _, each in asked]
        for each in live:
            del each[5:]
        found = {}
        for owners, spans, rows in kept.pieces([span for span, _ in asked]):
            at = 0
            for owner, span in zip(owners, spans, strict=True):
                part = rows[at : at + len(span.tokens)].tolist()
                assert [p + 1 for _, p in part] == list(span.tokens)
                assert part[0][1] == span.start
                found.setdefault(id(owner.state), []).extend((int(n), int(p)) for n, p in part)
                at += len(span.tokens)
        for (number, end, first), (span, _) in zip(expected, asked, strict=True):
            got = found.get(id(span.state), [])
            begin = end - len(got)
            assert got == [(number, p) for p in range(begin, end)]
            assert first <= begin <= max(first, end - window)


def test_a_gap_is_noticed():
    kept, a = Behind(16), DraftState()
    kept.keep(torch.zeros(4, 2), [committed(a, 5, [0, 1])])
    with pytest.raises(AssertionError, match="a gap before 8"):
        kept.keep(torch.zeros(4, 2), [committed(a, 8, [0])])
    with pytest.raises(AssertionError, match="a gap before 6"):
        list(kept.pieces([committed(a, 6, [0], extend=True)]))


def test_what_is_forgotten_leaves_no_trace():
    kept, a, b = Behind(16), DraftState(), DraftState()
    for at in (5, 6, 7):
        work = [committed(a, at, [0], [1]), committed(b, at, [1], [1])]
        kept.keep(torch.full((2, 2), float(at)), work)
    kept.forget()
    assert not len(kept)
    assert list(kept.pieces([committed(b, 30, [0], [1], extend=True)])) == []
    kept.keep(torch.full((1, 2), 40.0), [committed(a, 40, [0], [1])])
    kept.keep(torch.full((1, 2), 41.0), [committed(a, 41, [0], [1])])
    [(_, [span], states)] = list(kept.pieces([committed(a, 42, [0], [1], extend=True)]))
    assert (span.start, states.tolist()) == (40, [[40.0, 40.0], [41.0, 41.0]])


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
