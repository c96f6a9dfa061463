"""How a format spells a tool call. Grammars of calls are made from this."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    """An argument that is written as a key and a value: BEFORE_KEY key BEFORE_VALUE value END.

    close: ends a text value. end: `close` with the blanks around it that models write."""

    before_key: str
    before_value: str
    close: str
    end: str


class Spelling(NamedTuple):
    """An answer with calls: OUTER[0] call BETWEEN call OUTER[1]. A call: BEFORE_NAME name AFTER_NAME
    arguments END.

    trigger: the beginning of BEFORE_NAME; it occurs in no text outside calls. pair: the form of an argument;
    None if the arguments are one JSON object. name_in_json: the name is inside a JSON string."""

    trigger: str
    before_name: str
    after_name: str
    end: str
    between: str = ""
    outer: tuple[str, str] = ("", "")
    pair: Pair | None = None
    name_in_json: bool = False
