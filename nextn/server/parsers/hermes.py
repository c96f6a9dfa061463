"""The format of tool calls of Hermes 2 Pro and later, Qwen2.5 and Qwen3. A call is a JSON object.

    <tool_call>
    {"name": "NAME", "arguments": ARGUMENTS}
    </tool_call>

The members may come in either order. "parameters" is read like "arguments"; other members are dropped. Once
the name is known, arguments are passed on as they arrive, whether they are JSON or not. Marks inside JSON
strings are text. Sources: the models' chat templates; SGLang's hermes_detector.py and qwen25_detector.py;
vLLM's hermes_tool_parser.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from nextn.server.parsers.calls import MOST_NAME, CallParser
from nextn.server.parsers.json_end import JsonEnd
from nextn.server.parsers.spelling import Spelling
from nextn.server.parsers.typed import join_surrogates

CALL, END = "<tool_call>", "</tool_call>"
MARKS = (CALL, END)
HERMES = Spelling(CALL, f'{CALL}\n{{"name": "', '", "arguments": ', f"}}\n{END}", "\n", name_in_json=True)
STRING = re.compile(r'\s*("(?:[^"\\]|\\.)*")', re.DOTALL)
MEMBER = re.compile(STRING.pattern + r"\s*:\s*", re.DOTALL)
ARGUMENTS = ("arguments", "parameters")
MOST_HEAD = 2 * MOST_NAME  # characters of a member's name; of the member "name", with its value


class HermesParser(CallParser):
    BEGINS = (CALL,)

    def __init__(self, functions: Mapping[str, Any]) -> None:
        super().__init__(functions)
        self._called: str | None = None
        self._arguments: list[str] | None = None  # arguments that came before the name
        self._passed = False  # whether arguments have come
        self._value_of = ""  # the member whose value is being read
        self._end = JsonEnd()

    def _after(self, mark: str) -> Callable[[], bool]:
        self._called, self._arguments, self._passed = None, None, False
        return self._object

    def _object(self) -> bool:
        mark = self._next("{")
        if mark == "":
            return False
        if mark is None:
            return self._not_a_call()
        self._step = self._member
        return True

    def _member(self) -> bool:
        """Reads a member's name, up to its value."""
        match = MEMBER.match(self._held)
        if match is None or match.end() == len(self._held):  # blanks may follow
            return self._wait()
        if match.end() > MOST_HEAD:
            return self._broken()
        word = read_string(match[1])
        if word is None:
            return self._broken()
        if word == "name" and self._called is None:
            return self._name(match.end())
        self._take(match.end())
        self._value_of = word
        self._end = JsonEnd()
        self._step = self._value
        return True

    def _name(self, at: int) -> bool:
        match = STRING.match(self._held, at)
        if match is None:
            return self._wait() if self._held[at] == '"' else self._broken()
        name = read_string(match[1])
        if not name or match.end() > MOST_HEAD:
            return self._broken()
        self._take(match.end())
        self._called = name
        self._begin_call(name)
        if self._arguments is not None:
            self._emit("arguments", "".join(self._arguments))
        self._step = self._next_member
        return True

    def _value(self) -> bool:
        at = self._end.take(self._held)
        while not self._end.found and at < len(self._held):  # it stopped at a "<"
            rest = self._held[at : at + len(END)]
            if END.startswith(rest):
                break
            at = self._end.take(self._held, at + 1)
        complete = self._held.startswith(END, at)
        self._argument(self._take(at))
        if self._end.found or complete:
            self._step = self._next_member
            return True
        return False

    def _argument(self, text: str) -> None:
        if self._value_of not in ARGUMENTS:
            return
        if self._called is None:
            self._arguments = self._arguments or []
            self._arguments.append(text)
        else:
            self._emit("arguments", text)
        self._passed = True

    def _next_member(self) -> bool:
        """Reads the mark after a member."""
        mark = self._next(",", "}", END)
        if mark == "":
            return False
        if mark == ",":
            self._step = self._member
        elif mark is None:
            return self._broken()
        elif self._called is None:
            return self._not_a_call()
        else:
            if mark == "}" and not self._passed:
                self._emit("arguments", "{}")
            if mark == END:
                self._end_call()
            else:
                self._step = self._close
        return True

    def _close(self) -> bool:
        """Reads the end mark after the object, if there is one."""
        if self._next(END) == "":
            return False
        self._end_call()
        return True

    def _wait(self) -> bool:
        """Waits for the rest of a name (returns False). If the text is too long for one, ends the call."""
        return len(self._held) > MOST_HEAD and self._broken()

    def _broken(self) -> bool:
        if self._called is None:
            return self._not_a_call()
        self._end_call()
        return True

    def _take(self, count: int) -> str:
        text, self._held = self._held[:count], self._held[count:]
        if self._marks:
            self._marks.append(text)
        return text

    def _unfinished(self) -> None:
        if self._step == self._value:
            self._argument(self._held)
            self._held = ""
        elif not self._held.strip():
            self._held = ""


def read_string(text: str) -> str | None:
    try:
        return join_surrogates(str(json.loads(text, strict=False)))
    except ValueError:
        return None
