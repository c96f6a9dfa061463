"""The common base of the parsers of tool calls: a state machine over a text that arrives in pieces.

The parts do not depend on how the text was cut into pushes. The work is linear in the text's length. A text
that turns out to be no call becomes content, including its marks. If a call has no end mark, its arguments
remain unclosed JSON, so that clients do not take them for complete.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from nextn.server.parsers.parts import Kind, Part, cut

MOST_NAME = 256  # characters of a function's or an argument's name
AT_ONCE = 4096  # characters per round; small, because each step copies the unread rest of them
NO_NAME = re.compile(r"[\s<>]")


class CallParser(ABC):
    """Parses the calls of one answer; each format has a subclass. functions: the parameters (a JSON schema,
    or None) of each function that may be called."""

    BEGINS: ClassVar[tuple[str, ...]]  # the marks at which calls begin
    KEEPS_BLANKS: ClassVar[bool] = False  # whether blanks before a call are content

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._functions = functions
        self._step: Callable[[], bool] = self._text
        self._held = ""
        self._blank: list[str] = []  # blanks at the end of the content so far; dropped if a call follows
        self._gap: list[str] = []  # blanks before the mark that `_next` waits for
        self._marks: list[str] = []  # marks read but not passed on; they become content if no call follows
        self._parts: list[Part] = []
        self._begun = 0
        self._just_ended = False  # whether only blanks came since the last call
        self.ended = 0  # number of complete calls

    def push(self, text: str) -> list[Part]:
        for i in range(0, len(text), AT_ONCE):
            self._held += text[i : i + AT_ONCE]
            while self._held and self._step():
                pass
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """The parts that were held back. Call it at the end of the text."""
        self._held = self._take_gap() + self._held
        if self._step != self._text and not self._marks:
            self._unfinished()
        if self._just_ended:
            self._blank = []
        self._emit("content", "".join([*self._blank, *self._marks, self._held]))
        self._blank, self._marks, self._held = [], [], ""
        parts, self._parts = self._parts, []
        return parts

    # Methods of each format

    @abstractmethod
    def _after(self, mark: str) -> Callable[[], bool]:
        """The step after `mark`, which is one of BEGINS."""

    @abstractmethod
    def _unfinished(self) -> None:
        """The text ended inside a call: passes on the arguments in `_held`. `finish` sends the rest of
        `_held` as content."""

    # Steps take text from `_held`. They return False if they need more text first.

    def _text(self) -> bool:
        before, mark, self._held = cut(self._held, self.BEGINS)
        self._content(before)
        if mark is None:
            return False
        self._marks, self._blank = [*self._blank, mark], []
        self._step = self._after(mark)
        return True

    def _next(self, *marks: str) -> str | None:
        """Takes the next mark, after blanks, and returns it. Returns "" if it needs more text first, and None
        if the next text is no mark."""
        rest = self._held.lstrip()
        if rest != self._held:
            self._gap.append(self._held[: len(self._held) - len(rest)])
            self._held = rest
        for mark in marks:
            if rest.startswith(mark):
                blank = self._take_gap()
                if self._marks:
                    self._marks += [blank, mark]
                self._held = rest.removeprefix(mark)
                return mark
        if any(mark.startswith(rest) for mark in marks):
            return ""
        self._held = self._take_gap() + self._held
        return None

    def _take_gap(self) -> str:
        text, self._gap = "".join(self._gap), []
        return text

    def _is_name(self, name: str) -> bool:
        return bool(name) and (name in self._functions or not NO_NAME.search(name))

    def _begin_call(self, name: str) -> None:
        self._marks = []
        self._parts.append(Part("call", name, self._begun))
        self._begun += 1

    def _end_call(self) -> None:
        self.ended += 1
        self._just_ended = True
        self._step = self._text

    def _not_a_call(self, text: str = "") -> bool:
        """Passes on the text since the mark, and `text`, as content."""
        marks, self._marks = "".join(self._marks), []
        self._content(marks + text)
        self._step = self._text
        return True

    def _content(self, text: str) -> None:
        """Passes on content. Blanks at its end are held back unless KEEPS_BLANKS, since a call may follow."""
        kept = text if self.KEEPS_BLANKS else text.rstrip()
        if kept:
            self._emit("content", "".join([*self._blank, kept]))
            self._blank, self._just_ended = [], False
        if len(kept) < len(text):
            self._blank.append(text[len(kept) :])

    def _emit(self, kind: Kind, text: str) -> None:
        if text:
            self._parts.append(Part(kind, text, self._begun - 1 if kind == "arguments" else 0))
