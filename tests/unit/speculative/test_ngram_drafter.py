"""The drafter's index follows the request, whatever steps it is asked in."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.draft import NO_DRAFT
from nextn.speculative.committed import Committed
from nextn.speculative.ngram import lookup
from nextn.speculative.ngram_drafter import NGramDrafter


def ask(drafter, history, chosen, want, rid="a"):
    work = Committed(rid, len(history) - 1, [0], chosen, [1], want, list(history), chosen)
    made = drafter.propose(torch.zeros(1, 1), [work], None)
    assert (made.extended, list(made.passes)) == (0, [])
    return list(made.drafts[0].tokens)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 6)), max_size=15
    ),
)
def test_it_guesses_from_all_that_is_committed(prompt, steps):
    drafter = NGramDrafter()
    text = list(prompt)
    for chosen, want in steps:
        assert ask(drafter, text, chosen, want) == lookup([*text, *chosen], want)
        text += chosen


def test_an_id_that_comes_again_is_another_request():
    drafter = NGramDrafter()
    assert ask(drafter, [5, 6, 7, 5], [6], 2) == [7, 5]
    assert ask(drafter, [1, 2, 3, 1], [2], 2, rid="b") == [3, 1]
    drafter.forget(["a"])
    assert ask(drafter, [8, 9, 8], [9], 2) == [8, 9]


def test_a_guess_of_nothing_is_no_draft():
    work = Committed("a", 0, [0], [2], [1], 3, [1], [2])
    assert NGramDrafter().propose(torch.zeros(1, 1), [work], None).drafts == [NO_DRAFT]
