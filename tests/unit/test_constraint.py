"""A request's way through a grammar: what is allowed after drafts, what stands, which drafts are worth it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_grammar import ToyGrammar

from nextn.constraint import Constraint, GrammarCursor
from nextn.draft import Draft

V = 12
END = 1
tokens = st.lists(st.integers(0, V - 1), max_size=5)


def after(path, **kind):
    """What a grammar that never had to go back says: (allowed, may end), None if the path is not allowed."""
    grammar = ToyGrammar(V, **kind)
    if END in path or grammar.advance(path) < len(path):
        return None
    allowed = set(grammar.mask().nonzero()[0])
    return allowed | ({END} if grammar.accepting else set())


def seen(cursor, path):
    found = cursor.allowed(path)
    return None if found is None else set(found.tokens.nonzero()[0])


@given(st.lists(tokens, max_size=4), st.lists(tokens, max_size=6), st.integers(1, 8), st.integers(0, 99))
def test_a_cursor_is_a_grammar_read_from_the_start(steps, paths, length, salt):
    kind = {"length": length, "salt": salt, "spread": 2}
    cursor = GrammarCursor(ToyGrammar(V, **kind), frozenset({END}))
    committed: list[int] = []
    for step in [*steps, []]:
        for path in paths:
            assert seen(cursor, path) == after([*committed, *path], **kind)
        took = cursor.commit(step)
        # By brute force: the token that completes the text is the last that counts, none that is no good.
        expected, ended, error = len(step), False, False
        for i, token in enumerate(step):
            if token == END:
                expected = i + 1
                break
            here = after([*committed, *step[: i + 1]], **kind)
            if here is None or here == {END}:
                expected, ended, error = i + (here is not None), here == {END}, here is None
                break
        assert (took.kept, took.ended, took.error is not None) == (expected, ended, error)
        if took.ended or took.error or END in step:
            return
        committed += step


@given(
    st.lists(st.tuples(st.integers(0, V - 1), st.integers(-1, 6)), max_size=7),
    st.integers(1, 4),
    st.integers(0, 99),
)
def test_pruning_leaves_what_is_allowed(nodes, length, salt):
    kind = {"length": length, "salt": salt, "spread": 2}
    cursor = GrammarCursor(ToyGrammar(V, **kind), frozenset({END}))
    parents = [min(parent, i - 1) for i, (_, parent) in enumerate(nodes)]
    draft = Draft([token for token, _ in nodes], parents)

    def words(d):
        return [tuple(d.tokens[i] for i in d.path(node)) for node in range(len(d))]

    allowed = [w for w in words(draft) if w[-1] in (after(w[:-1], **kind) or set())]
    assert words(cursor.prune(draft)) == allowed


@given(tokens, st.integers(0, 9), st.integers(1, 8), st.integers(-1, 5), st.integers(0, 99))
def test_forced_is_what_any_text_goes_on_with(committed, most, length, dead, salt):
    kind = {"length": length, "salt": salt, "narrow": 8, "dead": dead}
    cursor = GrammarCursor(ToyGrammar(V, **kind), frozenset({END}))
    took = cursor.commit(committed)
    if took.ended or took.error or END in committed:
        return
    expected: list[int] = []
    while len(expected) < most:
        here = after([*committed, *expected], **kind)
        if len(here) != 1 or here == {END}:
            break
        expected += here
    assert cursor.forced(most) == expected


def test_a_dead_end_is_an_error():
    cursor = GrammarCursor(ToyGrammar(V, 9, dead=2, spread=1), frozenset({END}))
    assert cursor.commit([2]) == (1, False, None)
    took = cursor.commit([3, 4])
    assert took.kept == 1
    assert took.error is not None


def test_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"constraint\.kind is 'yaml'; it must be one of json_schema, regex"):
        Constraint("yaml", "").check()
