"""How a format spells a call: what grammars of calls are made from."""

from __future__ import annotations

from typing import NamedTuple


class Pair(NamedTuple):
    """An argument that is written as a key and a value: BEFORE_KEY key BEFORE_VALUE value END.

    In a text value, `close` ends it; `end` is what the model writes there, with blanks around `close`."""

    before_key: str
    before_value: str
    close: str
    end: str


class Spelling(NamedTuple):
    """OUTER[0] call BETWEEN call OUTER[1]; a call is BEFORE_NAME name AFTER_NAME arguments END. `trigger`:
    what BEFORE_NAME begins with and no text has. `pair`: of the arguments; None: they are one JSON object.
    `name_in_json`: the name is within a JSON string."""

    trigger: str
    before_name: str
    after_name: str
    end: str
    between: str = ""
    outer: tuple[str, str] = ("", "")
    pair: Pair | None = None
    name_in_json: bool = False
