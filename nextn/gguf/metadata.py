"""The keys of a GGUF file, typed and checked: every error names file, key and value."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nextn.checkpoint_error import CheckpointError
from nextn.gguf.header import Value

REQUIRED: Any = object()


class Metadata:
    """The keys of a file. arch: the value of general.architecture. A key that begins with a point is prefixed
    with it."""

    def __init__(self, path: Path, values: Mapping[str, Value]) -> None:
        self.path, self.values = path, values
        self.arch = ""
        self.arch = self.string("general.architecture")

    def error(self, key: str, rule: str) -> CheckpointError:
        key = self._full(key)
        return CheckpointError(f"{self.path}: key {key!r} is {_short(self.values.get(key))}; {rule}")

    def __contains__(self, key: str) -> bool:
        return self._full(key) in self.values

    def integer(self, key: str, default: Any = REQUIRED) -> Any:
        """An int >= 0, or the default."""
        value = self._get(key, default)
        if value is not default and (type(value) is not int or value < 0):
            raise self.error(key, "it must be a whole number, 0 or more")
        return value

    def number(self, key: str, default: Any = REQUIRED) -> Any:
        """A float, or the default. An f32 becomes the shortest decimal: 1e-06, not 9.99999997e-07."""
        value = self._get(key, default)
        if value is default:
            return value
        if type(value) not in (int, float) or value != value:
            raise self.error(key, "it must be a number")
        return shortest(float(value))

    def boolean(self, key: str, default: Any = REQUIRED) -> Any:
        value = self._get(key, default)
        if value is not default and type(value) is not bool:
            raise self.error(key, "it must be a bool")
        return value

    def string(self, key: str, default: Any = REQUIRED) -> Any:
        value = self._get(key, default)
        if value is not default and type(value) is not str:
            raise self.error(key, "it must be a string")
        return value

    def array(self, key: str, kind: type, default: Any = REQUIRED) -> Any:
        """A list of values of this type, or the default. For float, the values may be ints."""
        value = self._get(key, default)
        if value is default:
            return value
        kinds = {kind, int} if kind is float else {kind}
        if not isinstance(value, list) or not set(map(type, value)) <= kinds:
            raise self.error(key, f"it must be an array of {kind.__name__}")
        return value

    def refuse(self, keys: Mapping[str, Any]) -> None:
        """Raises CheckpointError if one of these keys has another value than the one given here. Such a value
        changes the computation in a way that nextn does not support."""
        for key, harmless in keys.items():
            if key in self and self._get(key, None) != harmless:
                raise self.error(key, "nextn does not support this value")

    def _get(self, key: str, default: Any) -> Any:
        full = self._full(key)
        if full in self.values:
            return self.values[full]
        if default is REQUIRED:
            raise CheckpointError(f"{self.path}: key {full!r} is missing")
        return default

    def _full(self, key: str) -> str:
        return self.arch + key if key.startswith(".") else key


def shortest(value: float) -> float:
    """The shortest decimal with the same f32 value; `value` itself if it is not an f32 number.

    >>> shortest(9.999999974752427e-07)
    1e-06
    """
    try:
        single = struct.pack("<f", value)
        for digits in range(6, 10):
            found = float(f"{value:.{digits}g}")
            if struct.pack("<f", found) == single and struct.unpack("<f", single)[0] == value:
                return found
    except OverflowError:
        pass
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
