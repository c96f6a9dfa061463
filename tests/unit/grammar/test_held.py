"""The memory of compiled constraints has a bound, and who gets the error when it is full."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.toy_grammar import ToyGrammar

from nextn.constraint import Constraint, GrammarCursor
from nextn.grammar import held as module
from nextn.grammar.held import Memory
from nextn.grammar.limits import FORGIVEN, LEAST_PATIENCE, MIB, PAGE, SLOW_MASKS, Busy, Limits

LIMITS = Limits(seconds=1, memory=16 * MIB)  # 2 MiB each


class Toy:
    def begin(self):
        return ToyGrammar(12, length=4, spread=2)


def constraint(i):
    return Constraint("regex", f"{i}")


def keep(memory, i, size=2 * MIB - 100):
    return memory.keep(constraint(i), Toy(), size)


def test_the_longest_unused_makes_way():
    memory = Memory(LIMITS)
    for i in range(8):
        keep(memory, i)
    assert memory.get(constraint(0)) is not None
    keep(memory, 8)
    assert [i for i in range(9) if memory.get(constraint(i)) is None] == [1]
    assert memory.bytes <= LIMITS.memory


def test_those_in_use_stay_and_others_wait_their_turn():
    memory = Memory(LIMITS)
    grammars = [keep(memory, i).begin() for i in range(8)]
    with pytest.raises(Busy, match=r"the constraints in use take all of --grammar-memory-mb \(16\)"):
        keep(memory, 8)
    del grammars[3]
    keep(memory, 8)
    assert memory.get(constraint(3)) is None


def test_one_may_take_an_eighth():
    with pytest.raises(
        ValueError, match=r"regex: it takes more than 2 MiB, 1/8 of --grammar-memory-mb \(16\)"
    ):
        keep(Memory(LIMITS), 0, 2 * MIB)


def test_small_ones_count_too():
    memory = Memory(LIMITS)
    for i in range(2000):
        keep(memory, i, 0)
    assert memory.bytes <= LIMITS.memory
    assert memory.get(constraint(0)) is None
    assert memory.get(constraint(1999)) is not None


class Growing(ToyGrammar):
    """A library that takes memory with every mask."""

    def mask(self):
        Growing.taken += MIB
        return super().mask()


@pytest.fixture
def growing(monkeypatch):
    Growing.taken = 0
    monkeypatch.setattr(module.resident, "read", lambda: b"0 %d 0" % (Growing.taken // PAGE))
    monkeypatch.setattr(Toy, "begin", lambda self: Growing(12, length=400, spread=2))


def test_one_that_grows_too_much_ends_and_is_forgotten(growing):
    memory = Memory(LIMITS)
    held = keep(memory, 0, MIB // 2)
    grammar, other = held.begin(), held.begin()
    assert grammar.mask().any()
    assert grammar.failure is None
    assert not grammar.mask().any()
    assert grammar.failure == "while texts used it, it takes more than 2 MiB, 1/8 of --grammar-memory-mb (16)"
    assert not other.mask().any()  # what has grown is common to both
    assert memory.get(constraint(0)) is None
    cursor = GrammarCursor(grammar, frozenset({1}))
    assert cursor.commit([5]) == (0, False, grammar.failure)


def test_on_ranks_neither_memory_nor_a_clock_ends_one(growing, monkeypatch):
    """What one rank has measured, another one has not."""
    clock = [0.0]

    def thread_time():
        clock[0] += 0.3
        return clock[0]

    monkeypatch.setattr(module.time, "thread_time", thread_time)
    grammar = keep(Memory(replace(LIMITS, alone=False)), 0, MIB // 2).begin()
    assert all(grammar.mask().any() for _ in range(20))
    assert grammar.failure is None


def test_what_another_process_has_judged_is_not_judged_again():
    """It is counted as it is, and refused no more: the engine's own process has taken it."""
    memory = Memory(LIMITS)
    held = [memory.taken(constraint(i), Toy(), 3 * MIB) for i in range(8)]
    assert [each.bytes for each in held] == [3 * MIB] * 8
    own = keep(Memory(LIMITS), 9, LIMITS.one - 10)
    make, arguments = own.__reduce__()
    assert make(*arguments).bytes == own.bytes > LIMITS.one - 10


def test_all_together_may_not_grow_too_much(growing):
    memory = Memory(LIMITS)
    idle = keep(memory, 99, MIB)
    assert memory.get(constraint(99)) is idle
    del idle
    used = [keep(memory, i, MIB // 2) for i in range(11)]
    grammars = [held.begin() for held in used]
    grown = [grammar.mask().any() for grammar in grammars]
    assert memory.get(constraint(99)) is None  # nobody used it
    assert not all(grown[-4:])
    assert sum(held.bytes for held in used if held.failure is None) <= LIMITS.memory
    failures = {held.failure for held in used if held.failure}
    assert failures == {
        "the constraints in use take more than --grammar-memory-mb (16), and this one is the largest"
    }


class Limited(ToyGrammar):
    """A library that comes to its own limit after a draft, and stays there: it takes nothing, nor back."""

    reached = False

    @property
    def failure(self):
        return "a limit" if self.reached else None

    @property
    def accepting(self):
        return False

    def mask(self):
        self.reached = self.reached or len(self.tokens) == 2
        return np.zeros(self.size, dtype=np.bool_) if self.reached else super().mask()

    def advance(self, tokens):
        return 0 if self.reached else super().advance(tokens)

    def rollback(self, count):
        if not self.reached:
            super().rollback(count)


def test_a_limit_that_a_draft_came_to_is_an_error():
    """Not an assertion: the tokens before it were allowed."""
    cursor = GrammarCursor(Limited(12, length=9, spread=2), frozenset({1}))
    first = next(t for t in range(2, 12) if cursor.allowed().tokens[t])
    second = next(t for t in range(2, 12) if cursor.allowed([first]).tokens[t])
    assert cursor.allowed([first, second]).dead
    assert cursor.commit([first]) == (1, False, "a limit")


def test_one_whose_masks_take_long_ends(monkeypatch):
    class Slow(ToyGrammar):
        def mask(self):
            clock[0] += 0.3
            return super().mask()

    clock = [0.0]
    monkeypatch.setattr(module.time, "thread_time", lambda: clock[0])
    monkeypatch.setattr(Toy, "begin", lambda self: Slow(12, length=400, spread=2))
    grammar = keep(Memory(LIMITS), 0).begin()
    assert [bool(grammar.mask().any()) for _ in range(5)] == [True, True, True, False, False]
    assert grammar.failure == "computing the allowed tokens took more than 20 ms too often"


def test_patience_shrinks_while_everybody_waits(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    memory = Memory(LIMITS)
    slow, other, third = (keep(memory, i, 0) for i in range(3))
    slow.delay(0.9 * SLOW_MASKS)
    assert slow.failure is None
    assert memory.patience(2 * SLOW_MASKS) == pytest.approx(1.1 * SLOW_MASKS)
    other.delay(LEAST_PATIENCE)
    assert other.failure is None
    slow.delay(0.1 * SLOW_MASKS)
    assert slow.failure == "computing the allowed tokens took more than 20 ms too often"
    assert memory.patience(0.5) == LEAST_PATIENCE
    other.delay(0.01)
    assert other.failure == "computing the allowed tokens took more than 20 ms too often"
    with pytest.raises(Busy, match="ebnf: constraints of this kind took too much time recently; try again"):
        memory.check_patience("ebnf")
    now[0] += 10 / FORGIVEN
    memory.check_patience("ebnf")
    assert memory.patience(0.5) == 0.5
    third.delay(0.9 * SLOW_MASKS)
    assert third.failure is None
