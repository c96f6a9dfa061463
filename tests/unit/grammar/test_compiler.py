"""Compiling beside the engine's loop: once for each constraint, and nobody suffers for another's mistake."""

from __future__ import annotations

import threading
import time

import pytest

from nextn.config import EngineConfig
from nextn.constraint import Constraint
from nextn.grammar import compiler
from nextn.grammar.compiler import GrammarCompiler
from nextn.request import SamplingParams
from nextn.server.grammar_line import GrammarLine
from nextn.server.messages import NewRequest

REGEX = Constraint("regex", "[0-9]+")


def make(**options):
    return GrammarCompiler(EngineConfig(**options), 4096, frozenset({1}))


def test_compiled_once_and_kept(monkeypatch):
    monkeypatch.setattr(compiler, "KEPT", 2)
    grammars = make()
    first = grammars.compile(REGEX)
    assert grammars.compile(Constraint("regex", "[0-9]+")) is first
    one, two = first.begin(), first.begin()
    five = one.mask().nonzero()[0][0]
    assert one.advance([five]) == 1
    assert (one.accepting, two.accepting) == (True, False)
    for text in ("a", "b"):
        grammars.compile(Constraint("regex", text))
    assert grammars.compile(REGEX) is not first


@pytest.mark.parametrize("text", ["", r"[^\s\S]"])
def test_what_no_text_could_match_is_refused(text):
    with pytest.raises(ValueError, match="regex: no text matches it, or the empty one alone"):
        make().compile(Constraint("regex", text))


def test_none_refuses():
    with pytest.raises(ValueError, match=r"off on this server \(--grammar-backend none\)"):
        make(grammar_backend="none").compile(REGEX)


class Library:
    """Compiles "slow" when it is let, "panic" never."""

    def __init__(self):
        self.let = threading.Event()

    def compile(self, constraint):
        if constraint.text == "panic":
            raise BaseException("a panic")
        assert self.let.wait(10)
        raise ValueError("regex: it is no good")


def test_a_failure_of_the_library_is_its_request_s(monkeypatch):
    monkeypatch.setattr(compiler, "make_backend", lambda *_: Library())
    with pytest.raises(ValueError, match="regex: llguidance failed on it: a panic"):
        make().compile(Constraint("regex", "panic"))


def take(line):
    deadline = time.perf_counter() + 10
    while time.perf_counter() < deadline:
        found = list(line.take())
        if found:
            return found
        time.sleep(0.001)
    raise AssertionError("nothing came")


def test_requests_wait_for_their_grammars_and_others_do_not(monkeypatch):
    library = Library()
    monkeypatch.setattr(compiler, "make_backend", lambda *_: library)
    line = GrammarLine(make())
    slow = SamplingParams(constraint=Constraint("regex", "slow"))
    plain = NewRequest("plain", [5], SamplingParams())
    with_it, without = NewRequest("with", [5], slow), NewRequest("without", [5], SamplingParams())
    line.put([without, with_it, NewRequest("gone", [5], slow)])
    line.put([plain])
    assert list(line.take()) == [[(plain, None)]]
    assert line
    line.drop("gone")
    library.let.set()
    ((refused, other),) = take(line)
    assert refused[0] is with_it  # first, so that the answer has not begun
    assert str(refused[1]) == "regex: it is no good"
    assert other == (without, None)
    assert not line


def test_requests_of_one_grammar_go_their_own_ways():
    line = GrammarLine(make())
    params = SamplingParams(constraint=REGEX)
    line.put([NewRequest("a", [5], params), NewRequest("b", [5], params)])
    ((a, b),) = take(line)
    assert a[1] is not b[1]
    assert not isinstance(a[1], ValueError)
