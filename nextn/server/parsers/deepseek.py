"""DeepSeek's two formats of tool calls.

deepseekv3 (V3-0324, R1-0528):

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME
    ```json
    ARGUMENTS
    ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

deepseekv31 (V3.1 and later), inside the same outer marks:

    <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>ARGUMENTS<｜tool▁call▁end｜>

Further calls follow inside the same outer marks. The outer marks may be missing. Arguments are passed on
unchanged, whether they are JSON or not. Only the marks, and the blanks between calls, are dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from nextn.server.parsers.calls import MOST_NAME, CallParser
from nextn.server.parsers.parts import cut
from nextn.server.parsers.spelling import Spelling

CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
SEPARATOR = "<｜tool▁sep｜>"
MARKS = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_END, SEPARATOR)
OUTER = (CALLS_BEGIN, CALLS_END)
V3 = Spelling(CALL_BEGIN, f"{CALL_BEGIN}function{SEPARATOR}", "\n```json\n", f"\n```{CALL_END}", "\n", OUTER)
V31 = Spelling(CALL_BEGIN, CALL_BEGIN, SEPARATOR, CALL_END, "", OUTER)


class V3Parser(CallParser):
    BEGINS = (CALLS_BEGIN, CALL_BEGIN)
    KEEPS_BLANKS = True
    BEFORE_NAME: ClassVar[str] = f"function{SEPARATOR}"
    AFTER_NAME: ClassVar[str] = "\n```json\n"
    FENCES: ClassVar[tuple[str, ...]] = ("\n```", "```")  # may stand between the arguments and the end mark

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._ends = tuple(f + mark for f in (*self.FENCES, "") for mark in (CALL_END, CALLS_END))

    def _after(self, mark: str) -> Callable[[], bool]:
        return self._between if mark == CALLS_BEGIN else self._head

    def _between(self) -> bool:
        """Reads the mark after the outer mark, or after a call."""
        mark = self._next(CALL_BEGIN, CALLS_END)
        if mark == "":
            return False
        if mark == CALL_BEGIN:
            self._marks = self._marks or [CALL_BEGIN]
            self._step = self._head
        elif mark == CALLS_END:
            self._marks = []
            self._step = self._text
        else:
            self._not_a_call()
        return True

    def _head(self) -> bool:
        """Reads the function's name."""
        before, mark, rest = cut(self._held, (self.AFTER_NAME, *self.BEGINS, CALL_END, CALLS_END))
        if mark is None and len(before) <= MOST_NAME:
            return False
        name = before.removeprefix(self.BEFORE_NAME).strip()
        named = bool(name) and before.startswith(self.BEFORE_NAME) and len(before) <= MOST_NAME
        if mark != self.AFTER_NAME or not named:
            self._held = (mark or "") + rest
            return self._not_a_call(before)
        self._begin_call(name)
        self._held = rest
        self._step = self._arguments
        return True

    def _arguments(self) -> bool:
        before, mark, self._held = cut(self._held, self._ends)
        self._emit("arguments", before)
        if mark is None:
            return False
        self._end_call()
        if not mark.endswith(CALLS_END):
            self._step = self._between
        return True

    def _unfinished(self) -> None:
        if self._step == self._arguments:
            if not self.FENCES or not self._held.startswith(self.FENCES):
                self._emit("arguments", self._held)
            self._held = ""
        elif not self._held.strip():
            self._held = ""


class V31Parser(V3Parser):
    BEFORE_NAME = ""
    AFTER_NAME = SEPARATOR
    FENCES = ()
