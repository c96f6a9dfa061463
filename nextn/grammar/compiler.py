"""Compiles constraints beside the engine's loop, each once: in a thread, and kept while it is in use.

A large schema takes a second. The engine goes on with the others meanwhile.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor

from nextn.config import EngineConfig, model_folder
from nextn.constraint import Constraint, GrammarCursor
from nextn.grammar.base import Backend, Compiled, Vocabulary, make_backend
from nextn.tokenizer import folder

log = logging.getLogger("nextn.grammar")

KEPT = 128  # compiled constraints


class GrammarCompiler:
    """Its library is loaded with the first constraint. One thread submits."""

    def __init__(self, config: EngineConfig, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self.name = config.grammar_backend
        self.vocabulary = Vocabulary(
            model_folder(config.model_path),
            vocab_size,
            sorted(eos_ids),
            not config.constrained_json_disable_any_whitespace,
        )
        self._backend: Backend | None = None
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._kept: OrderedDict[Constraint, Future[Compiled]] = OrderedDict()

    def submit(self, constraint: Constraint) -> Future[Compiled]:
        """The result raises ValueError for a constraint that is not valid, or that no text could match."""
        if self.name == "none":
            raise ValueError("structured output is off on this server (--grammar-backend none)")
        found = self._kept.get(constraint)
        if found is None or (found.done() and found.exception() is not None):
            found = self._kept[constraint] = self._thread.submit(self._compile, constraint)
            if len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(constraint)
        return found

    def compile(self, constraint: Constraint) -> Compiled:
        """Waits for it."""
        return self.submit(constraint).result()

    def _compile(self, constraint: Constraint) -> Compiled:
        try:
            return self._checked(constraint)
        except ValueError:
            raise
        except BaseException as e:  # Rust's panics are no Exception; a request's grammar ends nobody else
            log.exception("%s failed on %s", self.name, constraint)
            raise ValueError(f"{constraint.kind}: {self.name} failed on it: {e}") from e

    def _checked(self, constraint: Constraint) -> Compiled:
        if self._backend is None:
            self._backend = make_backend(self.name, self.vocabulary)
        compiled = self._backend.compile(constraint)
        first = GrammarCursor(compiled.begin(), frozenset()).allowed()
        if first is None or first.dead or first.ended:
            raise ValueError(f"{constraint.kind}: no text matches it, or the empty one alone")
        if constraint.after is None:
            return compiled
        token = folder.read_backend(self.vocabulary.folder).token_to_id(constraint.after)
        if token is None:
            raise ValueError(f"{constraint.kind}: there is no token {constraint.after!r} to begin after")
        from nextn.grammar.after import CompiledAfter  # numpy, which the HTTP process does without

        return CompiledAfter(compiled, token, self.vocabulary)
