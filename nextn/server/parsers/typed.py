"""Arguments as JSON from values that are written as text, piece by piece.

- A string by its schema is passed on as it comes, character for character. One that may be null is null if it
  is `null` or `None`.
- Any other value is passed on when it is complete: as it is, if it is JSON; as the JSON of the same value,
  if it is a Python literal such as `True` or `{'a': 1}`; else as a string. This is what vLLM's and SGLang's
  readers do (glm4_moe_tool_parser.py, glm4_moe_detector.py, qwen3_coder_detector.py).
"""

from __future__ import annotations

import ast
import json
import warnings
from typing import NoReturn

from nextn.server.parsers.schemas import Kind, kind_of

NULLS = ("null", "None")
MOST_LITERAL = 8_000  # characters of a Python literal; its parser goes deep


class ArgumentWriter:
    """Of one call. `parameters`: the function's schema. `unknown`: the kind of an argument without a type.
    What the methods return is the next text of the JSON object."""

    def __init__(self, parameters: object, unknown: Kind) -> None:
        self._parameters, self._unknown = parameters, unknown
        self._kind: Kind = unknown
        self._first = True
        self._quoted = False  # is the value a string that has begun?
        self._value: list[str] = []  # held back

    def key(self, name: str) -> str:
        """The value that follows is that of `name`."""
        self._kind = kind_of(self._parameters, name, self._unknown)
        self._quoted, self._value = False, []
        before, self._first = "{" if self._first else ", ", False
        return f"{before}{quoted(name)}: "

    def piece(self, text: str) -> str:
        """More of the value."""
        if not text:
            return ""
        if self._quoted:
            return quoted(text)[1:-1]
        self._value.append(text)
        if self._kind == "nullable":
            so_far = "".join(self._value)  # as long as a NULL at most
            if any(null.startswith(so_far) for null in NULLS):
                return ""
        elif self._kind != "text":
            return ""
        return self._begin_string()

    def end_value(self) -> str:
        if self._quoted:
            return '"'
        value = "".join(self._value)
        if self._kind == "text":
            return quoted(value)
        if self._kind == "nullable":
            return "null" if value in NULLS else quoted(value)
        return as_json(value)

    def end(self) -> str:
        """After the last value."""
        return "{}" if self._first else "}"

    def unfinished(self) -> str:
        """What is held back of a value that will not end."""
        return "" if self._quoted else "".join(self._value)

    def _begin_string(self) -> str:
        self._quoted = True
        text, self._value = "".join(self._value), []
        return quoted(text)[:-1]


def as_json(text: str) -> str:
    """
    >>> as_json(" 1e400 "), as_json("True"), as_json("{'a': [1,]}"), as_json("a b"), as_json("NaN")
    ('1e400', 'true', '{"a": [1]}', '"a b"', '"NaN"')
    """
    bare = text.strip()
    if is_json(bare):
        return bare
    if len(bare) <= MOST_LITERAL:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of backslashes in strings
                value = ast.literal_eval(bare)
            return whole(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return quoted(text)


def whole(text: str) -> str:
    """Halves of UTF-16 pairs, which escapes can spell, put together; those without another half are U+FFFD.

    >>> whole("\\ud83d\\ude00"), whole("a\\ud83d")
    ('😀', 'a�')
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def is_json(text: str) -> bool:
    try:
        json.loads(text, parse_int=str, parse_float=str, parse_constant=refuse)
    except (ValueError, RecursionError):
        return False
    return True


def refuse(word: str) -> NoReturn:
    raise ValueError(word)


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
