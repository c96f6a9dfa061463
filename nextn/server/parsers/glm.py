"""GLM's format of tool calls. Arguments are pairs of a key and a value; the function's schema says which
values are strings.

glm45 (GLM-4.5, GLM-4.6):                       glm47 (GLM-4.7, GLM-5), the same without line breaks:

    <tool_call>NAME                             <tool_call>NAME<arg_key>KEY</arg_key>
    <arg_key>KEY</arg_key>                      <arg_value>VALUE</arg_value></tool_call>
    <arg_value>VALUE</arg_value>
    </tool_call>

One parser reads both. A value ends only at </arg_value>, so it may contain other marks. `typed` describes the
conversion of values into JSON. Sources: the models' chat templates; SGLang's glm4_moe_detector.py and
glm47_moe_detector.py; vLLM's glm4_moe_tool_parser.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nextn.server.parsers.calls import MOST_NAME, CallParser
from nextn.server.parsers.parts import cut
from nextn.server.parsers.spelling import Pair, Spelling
from nextn.server.parsers.typed import ArgumentWriter

CALL, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
MARKS = (CALL, END, KEY, KEY_END, VALUE, VALUE_END)
GLM45 = Spelling(
    CALL, CALL, "\n", END, "\n", pair=Pair(KEY, f"{KEY_END}\n{VALUE}", VALUE_END, f"{VALUE_END}\n")
)
GLM47 = Spelling(CALL, CALL, "", END, pair=Pair(KEY, KEY_END + VALUE, VALUE_END, VALUE_END))


class GlmParser(CallParser):
    BEGINS = (CALL,)

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._writer = ArgumentWriter(None, "free")
        self._key_name = ""

    def _after(self, mark: str) -> Callable[[], bool]:
        return self._name

    def _name(self) -> bool:
        before, mark, rest = cut(self._held, (KEY, END, CALL))
        if mark is None and len(before) <= MOST_NAME:
            return False
        name = before.strip()
        if mark not in (KEY, END) or len(before) > MOST_NAME or not self._is_name(name):
            self._held = (mark or "") + rest
            return self._not_a_call(before)
        self._begin_call(name)
        self._writer = ArgumentWriter(self._functions.get(name), "free")
        self._held = mark + rest
        self._step = self._pairs
        return True

    def _pairs(self) -> bool:
        """Reads the mark after the name, or after a value."""
        mark = self._next(KEY, END, CALL)
        if mark == "":
            return False
        if mark == KEY:
            self._step = self._key
            return True
        if mark is not None:
            self._emit("arguments", self._writer.end())
        self._end_call()
        if mark == CALL:  # the end mark is missing
            self._held = CALL + self._held
        return True

    def _key(self) -> bool:
        before, mark, rest = cut(self._held, (KEY_END, CALL))
        if mark is None and len(before) <= MOST_NAME:
            return False
        if mark != KEY_END or len(before) > MOST_NAME:
            self._held = (mark or "") + rest
            return self._broken(KEY + before)
        self._key_name, self._held = before, rest
        self._step = self._before_value
        return True

    def _before_value(self) -> bool:
        mark = self._next(VALUE)
        if mark == "":
            return False
        if mark is None:
            return self._broken(KEY + self._key_name + KEY_END)
        self._emit("arguments", self._writer.key(self._key_name.strip()))
        self._step = self._value
        return True

    def _value(self) -> bool:
        before, mark, self._held = cut(self._held, (VALUE_END,))
        self._emit("arguments", self._writer.piece(before))
        if mark is None:
            return False
        self._emit("arguments", self._writer.end_value())
        self._step = self._pairs
        return True

    def _broken(self, text: str) -> bool:
        self._end_call()
        self._content(text)
        return True

    def _unfinished(self) -> None:
        if self._step == self._value:
            self._emit("arguments", self._writer.piece(self._held) + self._writer.unfinished())
            self._held = ""
        elif self._step == self._key:
            self._held = KEY + self._held
        elif self._step == self._before_value:
            self._held = KEY + self._key_name + KEY_END + self._held
        elif not self._held.strip():
            self._held = ""
