"""Constraints whose texts are followed in a process of their own: the same answers, and an end to waiting."""

from __future__ import annotations

import os
import pickle
import random
import signal
import time

import numpy as np
import pytest
from support.processes import children, runs
from support.server_process import until

from nextn.config import EngineConfig
from nextn.constraint import Constraint, GrammarCursor
from nextn.grammar import isolated as module
from nextn.grammar.compiler import GrammarCompiler
from nextn.grammar.held import CachedConstraint
from nextn.grammar.isolated import IsolatedGrammar
from nextn.grammar.limits import LEAST_PATIENCE, LONGEST_MASK, Busy

GBNF = 'root ::= item ("," item)* ";"\nitem ::= [a-z]+ | "(" item ")"'
LARK = 'start: item ("," item)* ";"\nitem: /[a-z]+/ | "(" item ")"'
CONSTRAINTS = [Constraint("ebnf", GBNF), Constraint("lark", LARK)]


@pytest.fixture(scope="module")
def grammars():
    made = GrammarCompiler(EngineConfig(), 4096, frozenset({1}))
    yield made
    made.workers.close()


def isolated_of(held: CachedConstraint) -> IsolatedGrammar:
    assert isinstance(held.compiled, IsolatedGrammar)
    return held.compiled


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda c: c.kind)
def test_the_answers_are_those_of_this_process(grammars, constraint):
    held = grammars.compile(constraint)
    here = pickle.loads(pickle.dumps(isolated_of(held)))  # followed by whoever has it
    rng = random.Random(0)
    for _ in range(4):
        one, other = held.begin(), here.begin()
        taken: list[int] = []
        for _ in range(40):
            mask = other.mask()
            assert np.array_equal(one.mask(), mask)
            assert (one.accepting, one.failure) == (other.accepting, other.failure) == (other.accepting, None)
            if taken and rng.random() < 0.3:
                back = rng.randint(1, len(taken))
                for grammar in (one, other):
                    grammar.rollback(back)
                del taken[-back:]
                continue
            allowed = mask.nonzero()[0].tolist()
            tokens = [rng.choice(allowed)] if allowed else []
            tokens += [rng.randrange(4096)] * rng.randrange(2)
            counts = [grammar.advance(tokens) for grammar in (one, other)]
            assert counts[0] == counts[1]
            taken += tokens[: counts[0]]


def test_only_grammars_that_a_client_wrote(grammars):
    for kind, text in (("regex", "[0-9]+"), ("choice", '["a"]'), ("json_schema", "{}")):
        assert not isinstance(grammars.compile(Constraint(kind, text)).compiled, IsolatedGrammar)


def test_an_answer_that_does_not_come_ends_its_constraint_alone(grammars):
    well = grammars.compile(CONSTRAINTS[0]).begin()
    assert well.mask().any()
    constraint = Constraint("ebnf", 'root ::= "x"+ ";"')
    held = grammars.compile(constraint)
    pid = isolated_of(held).pid
    assert pid in children(grammars.workers.pid)
    one, two = held.begin(), held.begin()
    token = int(one.mask().nonzero()[0][0])
    cursor = GrammarCursor(one, frozenset({1}))
    assert cursor.allowed() is not None
    os.kill(pid, signal.SIGSTOP)  # as if the library never came back
    began = time.monotonic()
    took = cursor.commit([token])
    assert time.monotonic() - began >= LONGEST_MASK
    assert took.error == "computing the allowed tokens takes more than 500 ms"
    assert not two.mask().any()
    assert two.failure == took.error
    assert well.mask().any()
    assert grammars.memory.get(constraint) is None
    with pytest.raises(Busy):
        grammars.compile(Constraint("lark", 'start: "w"+'))
    grammars.memory._stalls = 0.0  # forgiven
    until(lambda: not runs(pid))


def test_a_process_that_dies_ends_its_texts(grammars):
    held = grammars.compile(Constraint("ebnf", 'root ::= "y"+ ";"'))
    pid = isolated_of(held).pid
    text = held.begin()
    os.kill(pid, signal.SIGKILL)
    assert not text.mask().any()
    assert text.failure == "the process of this grammar ended, perhaps because it used too much memory"


def test_growth_counts_as_the_constraints(grammars, monkeypatch):
    held = grammars.compile(CONSTRAINTS[1])
    before, asked = held.bytes + held.unseen, module.IsolatedGrammar._read  # a page may not be counted yet

    def grown(self, count):
        data = asked(self, count)
        if count == module.ANSWER.size:
            taken, state, _, took, length = module.ANSWER.unpack(data)
            data = module.ANSWER.pack(taken, state, 3 << 20, took, length)
        return data

    monkeypatch.setattr(module.IsolatedGrammar, "_read", grown)
    held.begin().mask()
    assert held.bytes == before + (3 << 20)


def test_an_interrupted_answer_is_nobody_elses(grammars, monkeypatch):
    held = grammars.compile(Constraint("ebnf", 'root ::= "u"+ ";"'))
    text = held.begin()
    token = int(text.mask().nonzero()[0][0])

    def interrupt(self, count):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(module.IsolatedGrammar, "_read", interrupt)
        with pytest.raises(KeyboardInterrupt):
            text.advance([token])
    assert not held.begin().mask().any()
    assert not text.mask().any()
    assert text.failure == "it was interrupted"


def test_what_does_not_compile_after_all(grammars):
    """The report of its end is not taken for its number."""
    with pytest.raises(ValueError, match="ebnf: "):
        IsolatedGrammar(
            grammars.workers.child(), "llguidance", grammars.vocabulary, "ebnf", "no Lark", grammars.memory
        )


def test_its_own_slow_masks_count(grammars, monkeypatch):
    held = grammars.compile(Constraint("ebnf", 'root ::= "v"+ ";"'))
    asked = module.IsolatedGrammar._read

    def slow(self, count):
        data = asked(self, count)
        if count == module.ANSWER.size:
            taken, state, growth, _, length = module.ANSWER.unpack(data)
            data = module.ANSWER.pack(taken, state, growth, 0.6, length)
        return data

    monkeypatch.setattr(module.IsolatedGrammar, "_read", slow)
    text = held.begin()
    assert text.mask().any()
    assert grammars.memory.patience(0.5) == LEAST_PATIENCE
    text.rollback(0)
    assert not text.mask().any()
    assert text.failure is not None  # "too often", or on a busy machine the patience that is left is over
    grammars.memory._stalls = 0.0


def test_a_long_text_is_resumed(grammars):
    held = grammars.compile(Constraint("ebnf", "root ::= [a-z]*"))
    text = held.begin()
    letter, other = int(text.mask().argmax()), int((~text.mask()[2:]).argmax()) + 2
    assert text.advance([letter] * 2000) == 2000
    assert text.advance([*[letter] * 300, other, letter]) == 300
    text.rollback(1500)
    assert text.mask().any()


def test_little_memory_is_enough_for_a_process():
    made = GrammarCompiler(EngineConfig(grammar_memory_mb=8), 4096, frozenset({1}))
    assert made.compile(CONSTRAINTS[0]).begin().mask().any()
    made.workers.close()


def test_its_process_ends_with_it(grammars):
    held = grammars.compile(Constraint("ebnf", 'root ::= "z"+ ";"'))
    pid = isolated_of(held).pid
    grammars.compile(Constraint("regex", "z+"))  # what was compiled last may stay a little longer
    del grammars.memory._kept[held.constraint], held
    until(lambda: not runs(pid))
