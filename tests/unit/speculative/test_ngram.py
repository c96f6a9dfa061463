"""The index against a search through the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from nextn.speculative.ngram import LONGEST, SHORTEST, NGramIndex

texts = st.lists(st.integers(0, 2), max_size=60)


def lookup(tokens, num_steps):
    index = NGramIndex()
    index.extend(tokens)
    return index.guess(num_steps)[0]


def search(tokens, num_steps):
    """The same by trying every earlier place, latest first; the guess reads its own tokens as it goes."""
    for n in range(LONGEST, SHORTEST - 1, -1):
        for start in range(len(tokens) - n - 1, -1, -1):
            if tokens[start : start + n] == tokens[len(tokens) - n :]:
                text = list(tokens)
                for i in range(num_steps):
                    text.append(text[start + n + i])
                return text[len(tokens) :]
    return []


@given(texts, st.integers(0, 9))
def test_finds_what_a_search_finds(tokens, num_steps):
    assert lookup(tokens, num_steps) == search(tokens, num_steps)


@given(st.lists(texts, max_size=8))
def test_how_a_text_arrives_makes_no_difference(parts):
    index = NGramIndex()
    for part in parts:
        index.extend(part)
        assert index.guess(5)[0] == search(index.tokens, 5)
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
    assert lookup([1, 2, 9, 2], num_steps=4) == []


def test_memory_is_bounded_by_the_text():
    index = NGramIndex()
    index.extend(range(1000))
    assert sum(map(len, index._after.values())) <= 3 * 1000
