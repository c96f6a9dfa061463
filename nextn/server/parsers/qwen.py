"""The format of tool calls of Qwen3-Coder, and of Qwen3.5 and later. Arguments are named parameters; the
function's schema says which are strings.

    <tool_call>
    <function=NAME>
    <parameter=KEY>
    VALUE
    </parameter>
    </function>
    </tool_call>

A value loses one line break at its beginning and one at its end. It ends at </parameter>. Models sometimes
forget this mark, so it also ends before a line that begins with <parameter= or </function>. The outer marks
may be missing. `typed` describes the conversion of values into JSON; a value without a type is a string.
Sources: the models' chat templates; SGLang's qwen3_coder_detector.py; vLLM's parser/qwen3.py and
qwen3coder_tool_parser.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from nextn.server.parsers.calls import MOST_NAME, CallParser
from nextn.server.parsers.parts import cut
from nextn.server.parsers.spelling import Pair, Spelling
from nextn.server.parsers.typed import ArgumentWriter

CALL, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
KEY, VALUE_END = "<parameter=", "</parameter>"
MARKS = (CALL, END, FUNCTION, FUNCTION_END, KEY, VALUE_END)
LINE_ENDS = (KEY, FUNCTION_END)  # end a value if they are at the beginning of a line
VALUE_ENDS = (f"\n{VALUE_END}", VALUE_END, *(f"\n{end}" for end in LINE_ENDS))
CODER = Spelling(
    CALL,
    f"{CALL}\n{FUNCTION}",
    ">\n",
    f"{FUNCTION_END}\n{END}",
    "\n",
    pair=Pair(KEY, ">\n", VALUE_END, f"\n{VALUE_END}\n"),
)


class CoderParser(CallParser):
    BEGINS = (CALL, FUNCTION)

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._writer = ArgumentWriter(None, "text")
        self._call_name = ""

    def _after(self, mark: str) -> Callable[[], bool]:
        return self._name if mark == FUNCTION else self._function

    def _function(self) -> bool:
        """Reads the mark after <tool_call>."""
        mark = self._next(FUNCTION)
        if mark == "":
            return False
        if mark is None:
            return self._not_a_call()
        self._step = self._name
        return True

    def _name(self) -> bool:
        before, mark, rest = cut(self._held, (">", *self.BEGINS))
        if mark is None and len(before) <= MOST_NAME:
            return False
        if mark != ">" or len(before) > MOST_NAME or not self._is_name(before.strip()):
            self._held = (mark or "") + rest
            return self._not_a_call(before)
        self._call_name, self._held = before.strip(), rest
        self._marks.append(before + mark)
        self._step = self._first
        return True

    def _first(self) -> bool:
        """Reads the mark after the name. Without a correct mark here, the text is not a call."""
        mark = self._next(KEY, FUNCTION_END)
        if mark == "":
            return False
        if mark is None:
            return self._not_a_call()
        self._begin_call(self._call_name)
        self._writer = ArgumentWriter(self._functions.get(self._call_name), "text")
        self._held = mark + self._held
        self._step = self._pairs
        return True

    def _pairs(self) -> bool:
        mark = self._next(KEY, FUNCTION_END)
        if mark == "":
            return False
        if mark == KEY:
            self._step = self._key
        elif mark == FUNCTION_END:
            self._emit("arguments", self._writer.end())
            self._step = self._end
        else:
            self._end_call()
        return True

    def _key(self) -> bool:
        before, mark, rest = cut(self._held, (">", *self.BEGINS))
        if mark is None and len(before) <= MOST_NAME:
            return False
        if mark != ">" or len(before) > MOST_NAME:
            self._held = (mark or "") + rest
            self._end_call()
            self._content(KEY + before)
            return True
        self._emit("arguments", self._writer.key(before.strip()))
        self._held = rest
        self._step = self._value_begins
        return True

    def _value_begins(self) -> bool:
        """Drops the line break before a value, unless it is part of the mark that ends the value."""
        rest = self._held.removeprefix("\n")
        if rest != self._held:
            if any(end.startswith(rest) for end in LINE_ENDS):
                return False
            if not rest.startswith(LINE_ENDS):
                self._held = rest
        self._step = self._value
        return True

    def _value(self) -> bool:
        before, mark, self._held = cut(self._held, VALUE_ENDS)
        self._emit("arguments", self._writer.piece(before))
        if mark is None:
            return False
        self._emit("arguments", self._writer.end_value())
        if not mark.endswith(VALUE_END):
            self._held = mark + self._held
        self._step = self._pairs
        return True

    def _end(self) -> bool:
        """Reads the mark after </function>."""
        mark = self._next(END, FUNCTION)
        if mark == "":
            return False
        self._end_call()
        if mark == FUNCTION:
            self._held = FUNCTION + self._held
        return True

    def _unfinished(self) -> None:
        if self._step == self._value_begins:
            self._held = self._held.removeprefix("\n")
        if self._step in (self._value, self._value_begins):
            self._emit("arguments", self._writer.piece(self._held) + self._writer.unfinished())
            self._held = ""
        elif self._step == self._key:
            self._held = KEY + self._held
        elif not self._held.strip():
            self._held = ""
