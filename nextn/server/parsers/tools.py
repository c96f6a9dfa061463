"""Finds tool calls in DeepSeek's two formats, in text that arrives in pieces.

deepseekv3 (V3-0324, R1-0528), name and arguments of a call:

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    ARGUMENTS
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

deepseekv31 (V3.1 and later), within the same outer marks:

    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>

Further calls follow in the same outer marks, which may be missing. Arguments are passed on as they come; that
they are JSON is up to the model. What turns out to be no call is content, including its marks. Of calls, only
the marks and the blanks between calls are dropped. The parts do not depend on how the text was cut into
pushes.
"""

from __future__ import annotations

from typing import NamedTuple

from nextn.server.parsers.parts import Part, cut

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
MARKERS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)


class Format(NamedTuple):
    before_name: str
    after_name: str
    fences: tuple[str, ...]  # that may close the arguments, before the mark
    between: str  # two calls


# --tool-call-parser -> how a call is written
FORMATS = {
    "deepseekv3": Format(f"function{SEPARATOR}", "\n```json\n", ("\n```", "```"), "\n"),
    "deepseekv31": Format("", SEPARATOR, (), ""),
}


class ToolParser:
    """`parser`: one of FORMATS."""

    def __init__(self, parser: str) -> None:
        self._format = FORMATS[parser]
        ends = [f + mark for f in (*self._format.fences, "") for mark in (CALL_END, CALLS_END)]
        self._ends = tuple(ends)
        self._step = self._text
        self._held = ""
        self._marks = ""  # read and not passed on: content if no call follows
        self._calls = 0
        self._parts: list[Part] = []

    def push(self, text: str) -> list[Part]:
        self._held += text
        while self._held and self._step():
            pass
        parts, self._parts = self._parts, []
        return parts

    def finish(self) -> list[Part]:
        """What was held back, when no more will come."""
        held, marks = self._held, self._marks
        if self._step == self._arguments:
            if not held.startswith(self._format.fences):
                self._say("arguments", held)
        elif self._step != self._between or marks or held.strip():
            self._say("content", marks + held)
        self._held = self._marks = ""
        parts, self._parts = self._parts, []
        return parts

    # Each step reads on from `_held`; False: more text must come first.

    def _text(self) -> bool:
        before, mark, self._held = cut(self._held, (CALLS_BEGIN, CALL_BEGIN))
        self._say("content", before)
        if mark is None:
            return False
        self._marks = mark
        self._step = self._between if mark == CALLS_BEGIN else self._head
        return True

    def _between(self) -> bool:
        """After the outer mark, or after a call."""
        rest = self._held.lstrip()
        blank = self._held[: len(self._held) - len(rest)]
        if rest.startswith(CALL_BEGIN):
            self._marks += blank + CALL_BEGIN
            self._held = rest.removeprefix(CALL_BEGIN)
            self._step = self._head
        elif rest.startswith(CALLS_END):
            self._marks, self._held = "", rest.removeprefix(CALLS_END)
            self._step = self._text
        elif CALL_BEGIN.startswith(rest) or CALLS_END.startswith(rest):
            return False
        else:
            self._not_a_call("")
        return True

    def _head(self) -> bool:
        """The function's name."""
        before, mark, rest = cut(self._held, (self._format.after_name, CALL_BEGIN, CALL_END, CALLS_END))
        if mark is None:
            return False
        name = before.removeprefix(self._format.before_name).strip()
        if mark != self._format.after_name or not before.startswith(self._format.before_name) or not name:
            self._held = mark + rest
            self._not_a_call(before)
            return True
        self._say("call", name)
        self._calls += 1
        self._marks, self._held = "", rest
        self._step = self._arguments
        return True

    def _arguments(self) -> bool:
        before, mark, self._held = cut(self._held, self._ends)
        self._say("arguments", before)
        if mark is None:
            return False
        self._step = self._text if mark.endswith(CALLS_END) else self._between
        return True

    def _not_a_call(self, text: str) -> None:
        self._say("content", self._marks + text)
        self._marks = ""
        self._step = self._text

    def _say(self, kind: str, text: str) -> None:
        if not text:
            return
        if kind == "content":
            self._parts.append(Part("content", text))
        elif kind == "call":
            self._parts.append(Part("call", text, self._calls))
        else:
            self._parts.append(Part("arguments", text, self._calls - 1))
