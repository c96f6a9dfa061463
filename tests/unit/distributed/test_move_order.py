"""In which order experts move: nothing is lost, and little has to be put aside."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from nextn.distributed.move_order import in_order, rounds
from nextn.distributed.placement import Move


@st.composite
def some_moves(draw: st.DrawFn) -> list[Move]:
    slots = draw(st.integers(1, 12))
    sources = draw(st.lists(st.integers(0, slots - 1), min_size=slots, max_size=slots))
    return [Move(slot, source) for slot, source in enumerate(sources) if slot != source]


@given(some_moves())
def test_each_once_and_one_aside_for_each_circle(moves: list[Move]) -> None:
    order = in_order(moves)
    assert sorted(order) == sorted(moves)
    aside = [
        move.slot for i, move in enumerate(order) if move.slot in {later.source for later in order[i + 1 :]}
    ]
    assert len(aside) == circles(moves)


def circles(moves: list[Move]) -> int:
    """Each slot has one source at most, so each begins a chain that ends, or comes to a circle."""
    source_of = dict(moves)
    found = set()
    for start in source_of:
        slot, seen = start, []
        while slot in source_of and slot not in seen:
            seen.append(slot)
            slot = source_of[slot]
        if slot in seen:
            found.add(frozenset(seen[seen.index(slot) :]))
    return len(found)


@given(some_moves(), st.integers(1, 4))
def test_rounds_are_cut_by_what_crosses(moves: list[Move], most: int) -> None:
    def crosses(move: Move) -> bool:
        return move.slot % 2 != move.source % 2

    found = list(rounds(moves, crosses, most))
    assert [move for some in found for move in some] == moves
    assert all(found)
    for some, following in pairwise(found):
        assert sum(map(crosses, some)) == most
        assert crosses(following[0])
    assert all(sum(map(crosses, some)) <= most for some in found)
