"""Compiling beside the engine's loop: once for each constraint, and nobody suffers for another's mistake."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref

import pytest
from support.grammars import FOR_EVER, HOSTILE

from nextn.config import EngineConfig
from nextn.constraint import Constraint
from nextn.grammar import compiler
from nextn.grammar.compiler import GrammarCompiler
from nextn.grammar.limits import MIB, resident
from nextn.request import SamplingParams
from nextn.server.process.grammar_queue import GrammarQueue
from nextn.server.process.messages import NewRequest

REGEX = Constraint("regex", "[0-9]+")


def make(**options):
    return GrammarCompiler(EngineConfig(**options), 4096, frozenset({1}))


@pytest.fixture(scope="module")
def grammars():
    return make()


def test_compiled_once_and_kept(grammars):
    first = grammars.compile(REGEX)
    assert grammars.compile(Constraint("regex", "[0-9]+")) is first
    one, two = first.begin(), first.begin()
    five = one.mask().nonzero()[0][0]
    assert one.advance([five]) == 1
    assert (one.accepting, two.accepting) == (True, False)
    assert not grammars._compiling


@pytest.mark.parametrize("text", ["", r"[^\s\S]"])
def test_what_no_text_could_match_is_refused(grammars, text):
    with pytest.raises(ValueError, match="regex: it matches no text, or only the empty text"):
        grammars.compile(Constraint("regex", text))


def test_none_refuses():
    with pytest.raises(ValueError, match=r"off on this server \(--grammar-backend none\)"):
        make(grammar_backend="none").compile(REGEX)


@pytest.mark.parametrize("kind", ["ebnf", "lark"])
def test_kinds_that_end_by_a_clock_are_not_for_ranks(kind):
    with pytest.raises(ValueError, match=f"{kind} is not supported with --tp-size above 1"):
        make(tp_size=2).compile(Constraint(kind, 'root ::= "a"'))


class Library:
    """Compiles "slow" when it is let, "panic" never."""

    def __init__(self):
        self.let = threading.Event()

    def compile(self, kind, prepared):
        if "panic" in prepared:
            raise BaseException("a panic")
        assert self.let.wait(10)
        raise ValueError("regex: it is no good")


def test_a_failure_of_the_library_is_its_request_s(monkeypatch):
    monkeypatch.setattr(compiler, "make_backend", lambda *_: Library())
    with pytest.raises(ValueError, match="regex: llguidance failed on it: a panic"):
        make().compile(Constraint("regex", "panic"))


def take(queue):
    deadline = time.perf_counter() + 10
    while time.perf_counter() < deadline:
        found = list(queue.take())
        if found:
            return found
        time.sleep(0.001)
    raise AssertionError("nothing came")


def test_requests_wait_for_their_grammars_and_others_do_not(monkeypatch):
    library = Library()
    monkeypatch.setattr(compiler, "make_backend", lambda *_: library)
    queue = GrammarQueue(make())
    slow = SamplingParams(constraint=Constraint("regex", "slow"))
    plain = NewRequest("plain", [5], SamplingParams())
    with_it, without = NewRequest("with", [5], slow), NewRequest("without", [5], SamplingParams())
    queue.put([without, with_it, NewRequest("gone", [5], slow)])
    queue.put([plain])
    assert list(queue.take()) == [[(plain, None)]]
    assert queue
    queue.drop("gone")
    library.let.set()
    (refused,), (other,) = take(queue)
    assert refused[0] is with_it  # first, so that the answer has not begun
    assert str(refused[1]) == "regex: it is no good"
    assert other == (without, None)
    assert not queue


def test_requests_of_one_grammar_go_their_own_ways(grammars):
    queue = GrammarQueue(grammars)
    params = SamplingParams(constraint=REGEX)
    queue.put([NewRequest("a", [5], params), NewRequest("b", [5], params)])
    ((a, b),) = take(queue)
    grammar, other = a[1].begin(), b[1].begin()
    token = int(grammar.mask().argmax())
    assert grammar.advance([token]) == 1
    assert other.mask()[token]


@pytest.fixture(scope="module")
def patient():
    """However busy the machine is, what is refused here is not refused for its time."""
    return make(grammar_compile_timeout=100)


@pytest.fixture(scope="module")
def hasty():
    return make(grammar_compile_timeout=3)


@pytest.mark.parametrize(("kind", "text", "message"), HOSTILE.values(), ids=HOSTILE)
def test_what_would_harm_is_refused(patient, hasty, kind, text, message):
    """It would end this process, or take its memory, and there is a word of why it is not taken."""
    grammars = hasty if "it takes more than" in message else patient
    before = resident()
    with pytest.raises(ValueError, match=f"^{kind}: {message}"):
        grammars.compile(Constraint(kind, text))
    assert resident() - before < 40 * MIB
    assert grammars.compile(REGEX).begin().mask().any()


def test_what_takes_too_long_is_refused():
    grammars = make(grammar_compile_timeout=0.05)
    with pytest.raises(
        ValueError, match=r"ebnf: it takes more than 0.05 s to compile \(--grammar-compile-tim"
    ):
        grammars.compile(Constraint("ebnf", FOR_EVER))


def test_what_nobody_waits_for_is_ended(grammars):
    constraint = Constraint("ebnf", FOR_EVER)
    one, two = grammars.submit(constraint), grammars.submit(constraint)
    one.drop()
    assert not two.done()
    two.drop()
    with pytest.raises(ValueError, match="no request waits for it"):
        two.result()
    assert constraint not in grammars._compiling
    assert grammars.submit(constraint) is not one  # another may come, and waits
    assert grammars.compile(REGEX)


def test_what_grows_while_it_is_used_comes_to_an_end(grammars):
    """Each of its texts may take the library elsewhere."""
    grammar = grammars.compile(Constraint("regex", "((.{1,60}a){1,60}b)*")).begin()
    before = resident()
    rng = random.Random(1)
    while grammar.failure is None:
        found = grammar.mask().nonzero()[0]
        if grammar.failure is not None:
            break
        assert grammar.advance([rng.choice(found.tolist())]) == 1
        assert resident() - before < grammars.memory.limits.one + 100 * MIB
    assert not grammar.mask().any()
    assert not grammar.accepting
    again = grammars.compile(Constraint("regex", "((.{1,60}a){1,60}b)*")).begin()  # another, from the start
    assert again.failure is None
    assert again.mask().any()


def test_what_is_refused_is_told_of_at_once(grammars):
    """Then the others of its HTTP request are aborted."""
    queue = GrammarQueue(grammars)
    refused, slow = (
        NewRequest(rid, [5], SamplingParams(constraint=Constraint(kind, text)))
        for rid, kind, text in [("refused", "regex", "(("), ("slow", "ebnf", FOR_EVER)]
    )
    queue.put([slow, refused])
    (((new, error),),) = take(queue)
    assert new is refused
    assert isinstance(error, ValueError)
    assert queue
    queue.drop("slow")
    assert not list(queue.take())
    assert not queue


def test_nothing_keeps_what_was_compiled(grammars):
    """Not even until the next garbage collection: a process may belong to it."""
    gc.disable()
    try:
        made = grammars.submit(Constraint("regex", "w+"))
        held = weakref.ref(made.result())
        grammars.compile(REGEX)
        del grammars.memory._kept[Constraint("regex", "w+")], made
        deadline = time.monotonic() + 10
        while held() is not None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert held() is None
    finally:
        gc.enable()
