"""New requests whose grammars are being compiled, in the engine's process, until they may be added."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from nextn.constraint import Grammar
from nextn.grammar.base import Compiled
from nextn.grammar.compiler import GrammarCompiler
from nextn.server.messages import NewRequest

Ready = tuple[NewRequest, Grammar | ValueError | None]


class _Waiting(NamedTuple):
    request: NewRequest
    compiling: Future[Compiled] | ValueError | None  # None: it needs no grammar

    @property
    def done(self) -> bool:
        return not isinstance(self.compiling, Future) or self.compiling.done()

    def ready(self) -> Ready:
        if not isinstance(self.compiling, Future):
            return self.request, self.compiling
        try:
            return self.request, self.compiling.result().begin()
        except ValueError as e:
            return self.request, e


class GrammarLine:
    """Groups of requests, those of one HTTP request: none begins before all of them can, so that the one
    whose grammar is no good is told of before an answer begins."""

    def __init__(self, grammars: GrammarCompiler) -> None:
        self.grammars = grammars
        self._groups: list[list[_Waiting]] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, requests: Sequence[NewRequest]) -> None:
        self._groups.append([_Waiting(new, self._submit(new)) for new in requests])

    def _submit(self, new: NewRequest) -> Future[Compiled] | ValueError | None:
        if new.params.constraint is None:
            return None
        try:
            return self.grammars.submit(new.params.constraint)
        except ValueError as e:
            return e

    def drop(self, rid: str) -> None:
        self._groups = [[each for each in group if each.request.rid != rid] for group in self._groups]

    def take(self) -> Iterator[list[Ready]]:
        """The groups that are ready, each once. What is refused comes first."""
        ready = [group for group in self._groups if all(each.done for each in group)]
        self._groups = [group for group in self._groups if not all(each.done for each in group)]
        for group in ready:
            yield sorted((each.ready() for each in group), key=lambda r: not isinstance(r[1], ValueError))
