"""The drafter's index follows the request, whatever steps it is asked in."""

from hypothesis import given
from hypothesis import strategies as st
from support.draft_spans import all_drafts, draft_span

from nextn.draft import NO_DRAFT
from nextn.speculative.draft_state import DraftState
from nextn.speculative.ngram import NGramIndex
from nextn.speculative.ngram_drafter import NGramDrafter


def ask(state, history, chosen, num_steps):
    span = draft_span(num_steps=num_steps, history=list(history), chosen=chosen, state=state)
    made = all_drafts(NGramDrafter(), [span])
    assert (made.extended, list(made.passes)) == (0, [])
    return list(made.drafts[0].tokens)


@given(
    prompt=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    steps=st.lists(
        st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=4), st.integers(0, 6)), max_size=15
    ),
)
def test_it_guesses_from_all_that_is_committed(prompt, steps):
    state, text = DraftState(), list(prompt)
    for chosen, num_steps in steps:
        index = NGramIndex()
        index.extend([*text, *chosen])
        assert ask(state, text, chosen, num_steps) == index.guess(num_steps)[0]
        text += chosen


def test_each_request_has_its_own_text():
    one, two = DraftState(), DraftState()
    assert ask(one, [5, 6, 7, 5], [6], 2) == [7, 5]
    assert ask(two, [1, 2, 3, 1], [2], 2) == [3, 1]
    assert ask(one, [5, 6, 7, 5, 6], [7], 2) == [5, 6]


def test_a_guess_of_nothing_is_no_draft():
    span = draft_span(num_steps=3, history=[1], chosen=[2])
    assert all_drafts(NGramDrafter(), [span]).drafts == [NO_DRAFT]
