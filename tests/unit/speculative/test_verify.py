from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.verify import accepted_drafts


@given(st.lists(st.integers(0, 2), max_size=6), st.data())
def test_accepts_the_longest_common_prefix(drafts, data):
    choices = data.draw(st.lists(st.integers(0, 2), min_size=len(drafts) + 1, max_size=len(drafts) + 1))
    n = accepted_drafts(drafts, choices)
    assert drafts[:n] == choices[:n]
    assert n == len(drafts) or drafts[n] != choices[n]
