"""Constraints on a request's text, and a request's position in its grammar. Without tensors or I/O.

The engine contains no grammar library. The caller of `Engine.add` supplies a `CompiledGrammar` for each
request with a constraint (`nextn.grammar` has two libraries). A `GrammarCursor` keeps a grammar at the
request's last committed token, and says which tokens are allowed there and after drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from nextn.draft import Draft

if TYPE_CHECKING:  # the HTTP process does not need numpy
    import numpy as np
    from numpy.typing import NDArray

MOST_TEXT = 2**20  # characters of a constraint
NOT_ALLOWED = "the grammar does not allow what was chosen"
KINDS = ("json_schema", "regex", "choice", "ebnf", "lark", "structural_tag")


@dataclass(frozen=True, slots=True)
class Constraint:
    """kind: one of KINDS. text: the regex or grammar; or JSON: of the schema, of the list of strings to
    choose from, or of the structural tag. after: a token such as "</think>"; the text before it is free."""

    kind: str
    text: str
    after: str | None = None

    def check(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"constraint.kind is {self.kind!r}; it must be one of {', '.join(KINDS)}")
        if len(self.text) > MOST_TEXT:
            raise ValueError(f"{self.kind}: it has {len(self.text)} characters; {MOST_TEXT} are allowed")


class Grammar(Protocol):
    """A compiled constraint after some tokens. Each request has its own; requests may share the
    CompiledGrammar."""

    def mask(self) -> NDArray[np.bool_]:
        """[vocabulary], bool: which tokens may follow. End tokens are never included. The caller may keep the
        array."""

    @property
    def accepting(self) -> bool:
        """Whether the text may end here."""

    @property
    def failure(self) -> str | None:
        """The limit that it exceeded, or None. After that, nothing is allowed, and rollback does not help."""

    def advance(self, tokens: Sequence[int]) -> int:
        """Takes the tokens one by one, up to the first that is not allowed. Returns the number taken."""

    def rollback(self, count: int) -> None:
        """Undoes the last `count` tokens."""


class CompiledGrammar(Protocol):
    """A compiled constraint. `begin` makes a grammar at the beginning of a text."""

    def begin(self) -> Grammar: ...


class Allowed(NamedTuple):
    """tokens: [vocabulary], the tokens that may follow, including end tokens if the text may end. ended: only
    an end token may follow. dead: no token may follow."""

    tokens: NDArray[np.bool_]
    ended: bool
    dead: bool


class Took(NamedTuple):
    """The result of a commit: the first `kept` tokens are committed. ended: the text is complete with the
    last of them. error: why no token may follow them."""

    kept: int
    ended: bool = False
    error: str | None = None


class GrammarCursor:
    """A request's grammar at its last committed token. Not thread-safe.

    Exceptions of the grammar library do not leave this class. After one, `failed` has the message, nothing is
    allowed or forced any more, and `commit` returns an error.
    """

    def __init__(self, grammar: Grammar, end_ids: frozenset[int]) -> None:
        """end_ids: the tokens that end the request."""
        self.grammar, self.end_ids = grammar, end_ids
        # What drafting asks for is asked again when the drafts are verified. None: the path is not allowed.
        self._known: dict[tuple[int, ...], Allowed | None] = {}
        self.failed: str | None = None

    def replay(self, output: Sequence[int]) -> None:
        """Advances by tokens that another cursor of this request has already taken."""
        try:
            if self.grammar.advance(output) < len(output):
                self.failed = self._why()
        except BaseException as e:
            self._fail(e)

    def allowed(self, path: Sequence[int] = ()) -> Allowed | None:
        """The tokens allowed after these drafts. None if a draft itself is not allowed, or if the text has
        ended."""
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
        if isinstance(error, (KeyboardInterrupt, SystemExit)):  # Rust's panics are not Exceptions either
            raise error
        self.failed = f"the grammar's library failed: {type(error).__name__}: {error}"

    def forced(self, most: int) -> list[int]:
        """The next tokens, at most `most`, as long as each is the only one allowed."""
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
        """Advances by the tokens that a step has chosen. A token that ends the request is the last of
        them."""
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
        if n < len(path):  # it has exceeded a limit since the token was allowed as a draft
            return Took(n + 1, error=self._why())
        self._known = {known[n:]: what for known, what in self._known.items() if known[:n] == path}
        return took

    def stuck(self) -> str | None:
        """Why no token may follow; None if one may."""
        after = self.allowed()
        if after is None:
            return self.failed or self._why()
        return self._why() if after.dead else None

    def _why(self) -> str:
        return self.grammar.failure or "the grammar allows no further token"

    def prune(self, draft: Draft) -> Draft:
        """The draft without nodes that the grammar does not allow, and without their descendants."""
        keep: list[int] = []
        for node, token in enumerate(draft.tokens):
            path = [draft.tokens[i] for i in draft.path(node)[:-1]]
            before = self.allowed(path)
            if before is not None and before.tokens[token]:
                keep.append(node)
        return draft.keep(keep)
