"""What a text must match: how a request says it, and a request's way through it. Pure.

The engine knows no grammar library: whoever builds it brings a `CompiledGrammar` for each request that asks
for one (`nextn.grammar` has two). A `GrammarCursor` holds its grammar at the request's last committed token
and says what is allowed there and after drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nextn.draft import Draft

if TYPE_CHECKING:  # the HTTP process does without numpy
    import numpy as np
    from numpy.typing import NDArray

MOST_TEXT = 2**20  # characters of a constraint
NOT_ALLOWED = "the grammar does not allow what was chosen"
KINDS = ("json_schema", "regex", "choice", "ebnf", "lark", "structural_tag")


@dataclass(frozen=True, slots=True)
class Constraint:
    """kind: one of KINDS. text: the regex or grammar; JSON of the schema, of the list of strings to choose
    from, of the structural tag. after: a token such as "</think>", before which the text is free."""

    kind: str
    text: str
    after: str | None = None

    def check(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"constraint.kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if len(self.text) > MOST_TEXT:
            raise ValueError(f"{self.kind}: it has {len(self.text)} characters; {MOST_TEXT} are allowed")


class Grammar(Protocol):
    """A compiled constraint after some tokens. One for each request; what it was made from may be shared."""

    def mask(self) -> NDArray[np.bool_]:
        """[vocabulary]: which tokens may follow. End tokens are never among them. The caller's to keep."""

    @property
    def accepting(self) -> bool:
        """May the text end here?"""

    @property
    def failure(self) -> str | None:
        """The limit that it came to: there is no way on, nor back."""

    def advance(self, tokens: Sequence[int]) -> int:
        """Takes the tokens one by one, up to the first that may not follow. How many it took."""

    def rollback(self, count: int) -> None:
        """Takes back the last `count` tokens."""


class CompiledGrammar(Protocol):
    """What grammars of one constraint are made from, each at its beginning."""

    def begin(self) -> Grammar: ...


class Allowed(NamedTuple):
    """tokens [vocabulary]: what may follow; end tokens too where the text may end. ended: nothing but the end
    may follow. dead: not even that."""

    tokens: NDArray[np.bool_]
    ended: bool
    dead: bool


class Took(NamedTuple):
    """Of the tokens that a step would commit the first `kept`. ended: the text is complete with the last of
    them. error: why nothing may follow them."""

    kept: int
    ended: bool = False
    error: str | None = None


class GrammarCursor:
    """A request's grammar at its last committed token. Not thread-safe.

    What the grammar's library raises stays in here: from then on `failed` says so, nothing is allowed or
    forced any more, and `commit` is an error.
    """

    def __init__(self, grammar: Grammar, end_ids: frozenset[int]) -> None:
        """end_ids: the tokens that end the request."""
        self.grammar, self.end_ids = grammar, end_ids
        # What drafting asks for is asked again when the drafts are verified. None: no such path.
        self._known: dict[tuple[int, ...], Allowed | None] = {}
        self.failed: str | None = None

    def replay(self, output: Sequence[int]) -> None:
        """Goes on by tokens that another cursor of the request took before."""
        try:
            if self.grammar.advance(output) < len(output):
                self.failed = self._why()
        except BaseException as e:
            self._fail(e)

    def allowed(self, path: Sequence[int] = ()) -> Allowed | None:
        """After these drafts; None if they may not stand there themselves, or if the text has ended."""
        key = tuple(path)
        if key not in self._known:
            self._known[key] = self._look(key)
        return self._known[key]

    def _look(self, path: tuple[int, ...]) -> Allowed | None:
        if self.failed is not None or not self.end_ids.isdisjoint(path):
            return None
        found = None
        try:
            took = self.grammar.advance(path)
            if took == len(path):
                tokens = self.grammar.mask()
                nothing, accepting = not tokens.any(), self.grammar.accepting
                if accepting:
                    tokens[list(self.end_ids)] = True
                found = Allowed(tokens, nothing and accepting, nothing and not accepting)
            if took:
                self.grammar.rollback(took)
        except BaseException as e:
            self._fail(e)
            return None
        return found

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # Rust's panics are no Exception either
            raise error
        self.failed = f"the grammar's library failed: {type(error).__name__}: {error}"

    def forced(self, most: int) -> list[int]:
        """What follows, at most so many tokens, as far as each is the only one allowed."""
        path: list[int] = []
        while len(path) < most:
            after = self.allowed(path)
            if after is None or after.ended or after.dead:
                break
            token = int(after.tokens.argmax())
            if after.tokens[token + 1 :].any():
                break
            path.append(token)
        return path

    def commit(self, tokens: Sequence[int]) -> Took:
        """Goes on by the tokens that the step settled. A token that ends the request is the last of them."""
        path: tuple[int, ...] = ()
        took = None
        for i, token in enumerate(tokens):
            if token in self.end_ids:
                took = Took(i + 1)
                break
            path = (*path, token)
            after = self.allowed(path)
            if after is None:
                return Took(i, error=self.failed or self.grammar.failure or NOT_ALLOWED)
            if after.dead:
                return Took(i + 1, error=self._why())
            if after.ended:
                took = Took(i + 1, ended=True)
                break
        took = took or Took(len(tokens))
        try:
            n = self.grammar.advance(path)
        except BaseException as e:
            self._fail(e)
            return Took(0, error=self.failed)
        if n < len(path):  # it came to a limit since the token was allowed, after a draft
            return Took(n + 1, error=self._why())
        self._known = {known[n:]: what for known, what in self._known.items() if known[:n] == path}
        return took

    def stuck(self) -> str | None:
        """Why nothing may follow; None if something may."""
        after = self.allowed()
        if after is None:
            return self.failed or self._why()
        return self._why() if after.dead else None

    def _why(self) -> str:
        return self.grammar.failure or "the grammar has no way to go on from here"

    def prune(self, draft: Draft) -> Draft:
        """The draft without the nodes that the grammar would turn down, and what is under them."""
        keep: list[int] = []
        for node, token in enumerate(draft.tokens):
            path = [draft.tokens[i] for i in draft.path(node)[:-1]]
            before = self.allowed(path)
            if before is not None and before.tokens[token]:
                keep.append(node)
        return draft.keep(keep)
