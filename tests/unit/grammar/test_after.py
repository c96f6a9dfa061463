"""A grammar after a token: free before it, kept to after it, and back again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.toy_grammar import ToyGrammar

from nextn.config import EMBEDDED, EngineConfig, model_folder
from nextn.constraint import Constraint
from nextn.grammar.after import CompiledAfter
from nextn.grammar.base import Vocabulary
from nextn.grammar.compiler import GrammarCompiler

V, END, TOKEN = 12, 1, 5


class Toy:
    def begin(self):
        return ToyGrammar(V, length=4, spread=2)


def begin():
    return CompiledAfter(Toy(), TOKEN, Vocabulary(model_folder(EMBEDDED), V, [END])).begin()


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, V - 1), max_size=4)), max_size=6))
def test_like_reading_from_the_start(steps):
    grammar, there = begin(), []
    for keep, tokens in steps:
        took = grammar.advance(tokens)
        here = [*there, *tokens[:took]]
        inside = ToyGrammar(V, length=4, spread=2)
        if TOKEN in here:
            part = here[here.index(TOKEN) + 1 :]
            assert inside.advance(part) == len(part)
            assert (grammar.mask() == inside.mask()).all()
            assert grammar.accepting == inside.accepting
            assert took == len(tokens) or not inside.mask()[tokens[took]]
        else:
            assert set((~grammar.mask()).nonzero()[0]) == {END}
            assert not grammar.accepting
            assert took == len(tokens) or tokens[took] == END
        if keep:
            there = here
        else:
            grammar.rollback(took)


def test_the_token_is_the_tokenizer_s():
    grammars = GrammarCompiler(EngineConfig(), 4096, frozenset({1}))
    grammar = grammars.compile(Constraint("regex", "[0-9]", "<｜User｜>")).begin()
    assert grammar.mask().sum() == 4095
    with pytest.raises(
        ValueError, match="regex: it begins after the token '<nothing>', which does not exist"
    ):
        grammars.compile(Constraint("regex", "[0-9]", "<nothing>"))
