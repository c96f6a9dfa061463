"""The index against a search through the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.ngram import NGramIndex, lookup

texts = st.lists(st.integers(0, 2), max_size=60)


def search(tokens, num_steps, longest, shortest):
    """The same by trying every earlier place, latest first; the guess reads its own tokens as it goes."""
    for n in range(longest, shortest - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                text = list(tokens)
                for i in range(num_steps):
                    text.append(text[start + n + i])
                return text[len(tokens) :]
    return []


@given(texts, st.integers(0, 9), st.integers(1, 4), st.integers(0, 3))
def test_finds_what_a_search_finds(tokens, num_steps, shortest, wider):
    longest = shortest + wider
    assert lookup(tokens, num_steps, longest, shortest) == search(tokens, num_steps, longest, shortest)


@given(st.lists(texts, max_size=8))
def test_how_a_text_arrives_makes_no_difference(parts):
    index = NGramIndex()
    for part in parts:
        index.extend(part)
        assert index.guess(5) == search(index.tokens, 5, 4, 2)
    assert index.tokens == [token for part in parts for token in part]


def test_the_longest_suffix_decides_and_then_the_latest_place():
    #                    1 2 3 -> 4 (long)   9 2 3 -> 5 (later, but shorter)
    assert lookup([1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3], num_steps=1) == [4]
    assert lookup([2, 3, 4, 2, 3, 5, 2, 3], num_steps=1) == [5]


def test_a_repetition_goes_on():
    assert lookup([5, 6, 7, 5, 6, 7, 5, 6], num_steps=5) == [7, 5, 6, 7, 5]


def test_nothing_to_go_by():
    assert lookup([], num_steps=4) == []
    assert lookup([1, 2, 3, 4], num_steps=4) == []
    assert lookup([1, 2, 9, 2], num_steps=4, shortest=2) == []


def test_memory_is_bounded_by_the_text():
    index = NGramIndex(longest=4, shortest=2)
    index.extend(range(1000))
    assert sum(map(len, index._after.values())) <= 3 * 1000


@pytest.mark.parametrize(("longest", "shortest"), [(2, 3), (3, 0)])
def test_sizes_out_of_range_are_refused(longest, shortest):
    with pytest.raises(ValueError, match="n-grams"):
        NGramIndex(longest, shortest)
