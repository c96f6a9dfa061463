"""The queue in the engine process where new requests wait until their grammars are compiled."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from nextn.constraint import CompiledGrammar
from nextn.grammar.compiler import GrammarCompiler, Waiting
from nextn.grammar.fair_queue import Source
from nextn.server.process.messages import NewRequest

Ready = tuple[NewRequest, CompiledGrammar | ValueError | None]


class _Waiting(NamedTuple):
    request: NewRequest
    compiling: Waiting | ValueError | None  # None: it needs no grammar

    @property
    def done(self) -> bool:
        return self.compiling is None or isinstance(self.compiling, ValueError) or self.compiling.done()

    @property
    def refused(self) -> bool:
        if self.compiling is None or isinstance(self.compiling, ValueError):
            return self.compiling is not None
        return self.compiling.done() and self.compiling.exception() is not None

    def ready(self) -> Ready:
        if self.compiling is None or isinstance(self.compiling, ValueError):
            return self.request, self.compiling
        try:
            return self.request, self.compiling.result()
        except ValueError as e:
            return self.request, e


class GrammarQueue:
    """The queue. A group is the choices of one HTTP request. They begin together, so that a grammar that does
    not compile is reported before the answer begins."""

    def __init__(self, grammars: GrammarCompiler) -> None:
        self.grammars = grammars
        self._groups: list[list[_Waiting]] = []

    def __bool__(self) -> bool:
        return bool(self._groups)

    def put(self, requests: Sequence[NewRequest]) -> None:
        self._groups.append([_Waiting(new, self._submit(new)) for new in requests])

    def _submit(self, new: NewRequest) -> Waiting | ValueError | None:
        if new.params.constraint is None:
            return None
        try:
            return self.grammars.submit(new.params.constraint, Source.of(new.client))
        except ValueError as e:
            return e

    def drop(self, rid: str) -> None:
        for group in self._groups:
            for each in [each for each in group if each.request.rid == rid]:
                group.remove(each)
                if each.compiling is not None and not isinstance(each.compiling, ValueError):
                    each.compiling.drop()

    def take(self) -> Iterator[list[Ready]]:
        """Removes and yields refused requests, and then the groups whose grammars are all compiled."""
        for group in self._groups:
            refused = [each for each in group if each.refused]
            group[:] = [each for each in group if not each.refused]
            if refused:
                yield [each.ready() for each in refused]
        ready = [group for group in self._groups if all(each.done for each in group)]
        self._groups = [group for group in self._groups if not all(each.done for each in group)]
        yield from ([each.ready() for each in group] for group in ready if group)
