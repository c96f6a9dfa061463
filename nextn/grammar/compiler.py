"""Compiles each constraint once, outside the engine's loop, and keeps it while there is room.

A client's constraint is first tried in another process (`workers`), because it may crash the library, run
forever or fill the memory. A constraint that passes is safe, and a thread of this process compiles it.
"""

from __future__ import annotations

import logging
import threading
import weakref
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from nextn.config import EngineConfig, model_folder
from nextn.constraint import CompiledGrammar, Constraint
from nextn.grammar import trial
from nextn.grammar.backends import make_backend
from nextn.grammar.base import Backend, Vocabulary
from nextn.grammar.fair_queue import Source
from nextn.grammar.held import Memory
from nextn.grammar.isolated import KINDS as ISOLATED
from nextn.grammar.isolated import PROCESS, IsolatedGrammar
from nextn.grammar.limits import COMPILE_STACK, Limits, stack_of_threads
from nextn.grammar.workers import AT_ONCE, Tried, Workers
from nextn.tokenizer import folder

log = logging.getLogger("nextn.grammar")

HERE = Source()
OVER: Future[Tried] = Future()  # stands for a trial that has ended
OVER.set_result(Tried("", 0))


class Waiting:
    """A request that waits for a constraint to be compiled. Several requests may wait for the same
    constraint."""

    def __init__(self, compiling: _Compiling) -> None:
        self._compiling = compiling

    def done(self) -> bool:
        return self._compiling.made.done()

    def result(self) -> CompiledGrammar:
        """Waits for the constraint. Raises ValueError if it is invalid or no text can match it, Busy if there
        is no room."""
        return self._compiling.made.result()

    def exception(self) -> BaseException | None:
        """Returns what `result` would raise."""
        return self._compiling.made.exception()

    def drop(self) -> None:
        """Ends this wait. If no other request waits for the constraint, its trial is cancelled."""
        self._compiling.waiters -= 1
        if self._compiling.waiters == 0:
            self._compiling.tried.cancel()


class _Compiling:
    def __init__(self, tried: Future[Tried]) -> None:
        self.tried = tried
        self.made: Future[CompiledGrammar] = Future()
        self.waiters = 0


class GrammarCompiler:
    """All calls of `submit` and of `Waiting.drop` must come from one thread."""

    def __init__(self, config: EngineConfig, vocab_size: int, eos_ids: frozenset[int]) -> None:
        self.name = config.grammar_backend
        self.vocabulary = Vocabulary(
            model_folder(config.model_path),
            vocab_size,
            tuple(sorted(eos_ids)),
            config.constrained_json_any_whitespace,
        )
        limits = Limits.of(config)
        self.memory = Memory(limits)
        self.workers = Workers(
            "nextn.grammar.trial:constraints", trial.options(self.name, self.vocabulary), limits
        )
        weakref.finalize(self, self.workers.close)
        self._threads = ThreadPoolExecutor(AT_ONCE, "grammar")
        self._compiling: dict[Constraint, _Compiling] = {}
        self._changing = threading.Lock()  # held while `_compiling` changes
        self._loading = threading.Lock()
        self._loaded: Backend | None = None
        self._token_ids: dict[str, int | None] = {}

    def start(self) -> None:
        """Prepares for the first constraint in the background."""
        if self.name != "none":
            self.workers.start()

    def submit(self, constraint: Constraint, source: Source = HERE) -> Waiting:
        """Starts the compilation. source: the client. Raises ValueError if structured output is off, and
        Busy."""
        if self.name == "none":
            raise ValueError("structured output is off on this server (--grammar-backend none)")
        if constraint.kind in ISOLATED and not self.memory.limits.alone:
            raise ValueError(
                f"{constraint.kind} is not supported with --tp-size above 1: time limits can end such a "
                "grammar, and ranks would reach them at different tokens; use json_schema, regex or choice"
            )
        with self._changing:
            compiling = self._compiling.get(constraint)
        if compiling is None or compiling.tried.cancelled():
            compiling = self._begin(constraint, source)
        compiling.waiters += 1
        return Waiting(compiling)

    def compile(self, constraint: Constraint) -> CompiledGrammar:
        """Submits and waits for the result."""
        return self.submit(constraint).result()

    def _begin(self, constraint: Constraint, source: Source) -> _Compiling:
        held = self.memory.get(constraint)
        if held is not None:
            compiling = _Compiling(Future())
            compiling.made.set_result(held)
            return compiling
        if constraint.kind in ISOLATED:
            self.memory.check_patience(constraint.kind)
        asked = {"kind": constraint.kind, "text": constraint.text}
        compiling = _Compiling(self.workers.submit(asked, source))
        if self._loaded is None and constraint.kind not in ISOLATED:
            self._submit(self._backend)  # loads the library during the trial
        with self._changing:
            self._compiling[constraint] = compiling

        compiling.tried.add_done_callback(lambda tried: self._go_on(constraint, compiling))
        return compiling

    def _go_on(self, constraint: Constraint, compiling: _Compiling) -> None:
        """Called when the trial has ended or was cancelled."""
        if compiling.tried.cancelled():
            self._ended(constraint, compiling, ValueError("no request waits for it"))
        elif (error := compiling.tried.exception()) is not None:
            assert isinstance(error, ValueError)
            message = str(error).removeprefix(f"{constraint.kind}: ")
            self._ended(constraint, compiling, type(error)(f"{constraint.kind}: {message}"))
        else:
            self._submit(self._make, constraint, compiling)

    def _submit(self, *call: Any) -> None:
        with stack_of_threads(COMPILE_STACK):  # the pool may start a thread
            self._threads.submit(*call)

    def _make(self, constraint: Constraint, compiling: _Compiling) -> None:
        tried = compiling.tried.result()
        try:
            if constraint.kind in ISOLATED:
                isolated = IsolatedGrammar(
                    self.workers.child(), self.name, self.vocabulary, constraint.kind, tried.text,
                    self.memory,
                )  # fmt: skip
                compiled = self._with_after(constraint, isolated)
                held = self.memory.keep(constraint, compiled, tried.bytes, PROCESS)
                isolated.held = weakref.ref(held)
            else:
                compiled = self._with_after(constraint, self._backend().compile(constraint.kind, tried.text))
                held = self.memory.keep(constraint, compiled, tried.bytes)
            self._ended(constraint, compiling, held)
        except ValueError as e:
            self._ended(constraint, compiling, e)
        except OSError as e:
            log.error("no process could be started for a %s: %s", constraint.kind, e)
            why = "no process could be started for it; see the server's log"
            self._ended(constraint, compiling, ValueError(f"{constraint.kind}: {why}"))
        except BaseException as e:  # Rust's panics are not Exceptions; no grammar may end the engine
            log.exception("%s failed on %s", self.name, constraint)
            error = ValueError(f"{constraint.kind}: {self.name} failed on it: {e}")
            self._ended(constraint, compiling, error)

    def _ended(
        self, constraint: Constraint, compiling: _Compiling, how: CompiledGrammar | ValueError
    ) -> None:
        with self._changing:
            if self._compiling.get(constraint) is compiling:
                del self._compiling[constraint]
        if isinstance(how, ValueError):
            compiling.made.set_exception(how.with_traceback(None))  # frames would keep objects alive
        else:
            compiling.made.set_result(how)
        compiling.tried = OVER  # breaks a cycle, so that both are freed without the garbage collector

    def _backend(self) -> Backend:
        with self._loading:
            self._loaded = self._loaded or make_backend(self.name, self.vocabulary)
            return self._loaded

    def _with_after(self, constraint: Constraint, compiled: CompiledGrammar) -> CompiledGrammar:
        if constraint.after is None:
            return compiled
        token = self._token_id(constraint.after)
        if token is None:
            raise ValueError(
                f"{constraint.kind}: it begins after the token {constraint.after!r}, which does not exist"
            )
        from nextn.grammar.after import CompiledAfter  # needs numpy; the HTTP process does not

        return CompiledAfter(compiled, token, self.vocabulary)

    def _token_id(self, token: str) -> int | None:
        if token not in self._token_ids:
            self._token_ids[token] = folder.read_backend(self.vocabulary.folder).token_to_id(token)
        return self._token_ids[token]
