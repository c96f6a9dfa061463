"""Writes arguments as JSON, piece by piece, from values that the model wrote as text.

- If the schema says that a value is a string, its text is passed on as it arrives. If it may also be null,
  the texts `null` and `None` become null.
- Any other value is passed on when it is complete. JSON is passed on unchanged. A Python literal, for example
  `True` or `{'a': 1}`, becomes the JSON of its value. Anything else becomes a string. The parsers of vLLM and
  SGLang do the same (glm4_moe_tool_parser.py, glm4_moe_detector.py, qwen3_coder_detector.py).
"""

from __future__ import annotations

import ast
import json
import warnings
from typing import NoReturn

from nextn.server.parsers.schemas import Kind, kind_of

NULLS = ("null", "None")
MOST_LITERAL = 8_000  # characters of a Python literal, since its parser is recursive


class ArgumentWriter:
    """Writes the arguments of one call. Each method returns the next text of the JSON object. parameters: the
    function's schema. unknown: the kind of an argument without a type."""

    def __init__(self, parameters: object, unknown: Kind) -> None:
        self._parameters, self._unknown = parameters, unknown
        self._kind: Kind = unknown
        self._first = True
        self._quoted = False  # whether the beginning of a string has been returned
        self._value: list[str] = []  # the part of the value that is held back

    def key(self, name: str) -> str:
        """Begins the argument `name`. Its value follows."""
        self._kind = kind_of(self._parameters, name, self._unknown)
        self._quoted, self._value = False, []
        before, self._first = "{" if self._first else ", ", False
        return f"{before}{quoted(name)}: "

    def piece(self, text: str) -> str:
        """Adds a piece of the value."""
        if not text:
            return ""
        if self._quoted:
            return quoted(text)[1:-1]
        self._value.append(text)
        if self._kind == "nullable":
            so_far = "".join(self._value)  # cheap: before this piece, it was at most as long as a NULL
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
        """Ends the object, after the last value."""
        return "{}" if self._first else "}"

    def unfinished(self) -> str:
        """The text that is held back, for a value whose end never came."""
        return "" if self._quoted else "".join(self._value)

    def _begin_string(self) -> str:
        self._quoted = True
        text, self._value = "".join(self._value), []
        return quoted(text)[:-1]


def as_json(text: str) -> str:
    """The JSON of a value that was written as text: JSON, a Python literal, or a string.

    >>> as_json(" 1e400 "), as_json("True"), as_json("{'a': [1,]}"), as_json("a b"), as_json("NaN")
    ('1e400', 'true', '{"a": [1]}', '"a b"', '"NaN"')
    """
    bare = text.strip()
    if is_json(bare):
        return bare
    if len(bare) <= MOST_LITERAL:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about backslashes in strings
                value = ast.literal_eval(bare)
            return join_surrogates(json.dumps(value, ensure_ascii=False, allow_nan=False))
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            pass
    return quoted(text)


def join_surrogates(text: str) -> str:
    """Joins UTF-16 surrogate pairs, which JSON's escapes can produce. Single surrogates become U+FFFD.

    >>> join_surrogates("\\ud83d\\ude00"), join_surrogates("a\\ud83d")
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
