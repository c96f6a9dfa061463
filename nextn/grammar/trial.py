"""The trials that a worker's child runs: compiles a constraint and follows it for some tokens, or compiles a
stop regex. These functions and their library are loaded before any client's input arrives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nextn.constraint import Constraint, Grammar, GrammarCursor
from nextn.grammar.backends import make_backend
from nextn.grammar.base import Vocabulary
from nextn.grammar.limits import SLOWEST_MASK, TRIAL_STACK, WALK_STACK, stack
from nextn.grammar.worker import Try

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

WALK = 6  # tokens; a lazy library does most of its work for the first mask
WARM = Constraint("json_schema", '{"type": "object", "properties": {"a": {"type": "string"}}}')


def options(backend: str, vocabulary: Vocabulary) -> dict[str, Any]:
    """Makes the options of `constraints`, as JSON types."""
    return {
        "backend": backend,
        "folder": str(vocabulary.folder),
        "size": vocabulary.size,
        "eos_ids": list(vocabulary.eos_ids),
        "any_whitespace": vocabulary.any_whitespace,
    }


def constraints(options: Mapping[str, Any]) -> Try:
    """Makes the trial of constraints. A job's answer is the constraint as the backend prepares it. An empty
    job warms up. A job with "follow" has passed its trial, and is only compiled."""
    backend = make_backend(
        options["backend"],
        Vocabulary(Path(options["folder"]), options["size"], options["eos_ids"], options["any_whitespace"]),
    )

    def attempt(job: Mapping[str, Any]) -> tuple[str, object]:
        if "follow" in job:
            with stack(TRIAL_STACK):
                return "", backend.compile(job["kind"], job["text"])
        constraint = Constraint(job["kind"], job["text"]) if job else WARM
        with stack(TRIAL_STACK):
            prepared = backend.prepare(constraint)
            compiled = backend.compile(constraint.kind, prepared)
        with stack(WALK_STACK):
            grammar = Timed(compiled.begin())
            first_look(grammar, constraint.kind)
            walk(grammar)
        if grammar.slowest > SLOWEST_MASK:
            took, most = f"{1000 * grammar.slowest:.0f} ms", f"{1000 * SLOWEST_MASK:g} ms"
            raise ValueError(
                f"{constraint.kind}: computing the allowed tokens takes {took}; the limit is {most}"
            )
        if grammar.failure is not None:
            raise ValueError(f"{constraint.kind}: {grammar.failure}")
        return prepared, (compiled, grammar)

    return attempt


class Timed:
    """A grammar that measures its slowest mask, in CPU seconds."""

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar
        self.slowest = 0.0

    def mask(self) -> NDArray[np.bool_]:
        began = time.thread_time()
        found = self.grammar.mask()
        self.slowest = max(self.slowest, time.thread_time() - began)
        return found

    @property
    def accepting(self) -> bool:
        return self.grammar.accepting

    @property
    def failure(self) -> str | None:
        return self.grammar.failure

    def advance(self, tokens: Sequence[int]) -> int:
        return self.grammar.advance(tokens)

    def rollback(self, count: int) -> None:
        self.grammar.rollback(count)


def first_look(grammar: Grammar, kind: str) -> None:
    """Computes the first mask. Raises ValueError if no text can match."""
    first = GrammarCursor(grammar, frozenset()).allowed()
    if grammar.failure is not None:
        raise ValueError(f"{kind}: {grammar.failure}")
    if first is None or first.dead or first.ended:
        raise ValueError(f"{kind}: it matches no text, or only the empty text")


def walk(grammar: Grammar) -> None:
    for step in range(WALK):
        found = grammar.mask().nonzero()[0]
        if not len(found):
            break
        grammar.advance([int(found[step * 7919 % len(found)])])


def stop_regexes(options: Mapping[str, Any]) -> Try:
    """Makes the trial of stop expressions. A job's answer is empty."""
    from nextn.tokenizer.stop_regex import StopRegexes

    def attempt(job: Mapping[str, Any]) -> tuple[str, object]:
        with stack(WALK_STACK):
            return "", StopRegexes([job.get("pattern", "warm")])

    return attempt
