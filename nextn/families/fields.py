"""Reads a config's keys and checks their types. Every error names file, key, value and supported values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

REQUIRED: Any = object()
LARGEST_INTEGER = 2**63 - 1
SMALLEST, LARGEST = 1e-30, 1e30  # limits of numbers, so that results computed with them are finite


class Fields:
    """One JSON object of a config file. `prefix` is its path in the file, as in "rope_scaling."."""

    def __init__(self, data: Mapping[str, Any], source: str, prefix: str = "") -> None:
        self.data, self.source, self.prefix = data, source, prefix

    def error(self, key: str, rule: str) -> ValueError:
        return ValueError(f"{self.source}: {self.prefix}{key} is {self.data.get(key)!r}; {rule}")

    def get(self, key: str, default: Any = REQUIRED) -> Any:
        """The value, unchecked. Raises ValueError if it is required and absent."""
        if key in self.data:
            return self.data[key]
        if default is REQUIRED:
            raise ValueError(f"{self.source}: {self.prefix}{key} is missing; it is required")
        return default

    def integer(self, key: str, default: Any = REQUIRED, *, least: int = 1) -> int:
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise self.error(key, f"it must be an integer >= {least}")
        if value > LARGEST_INTEGER:
            raise self.error(key, "it must be an integer below 2**63")
        return value

    def number(self, key: str, default: Any = REQUIRED, *, zero: bool = False) -> float:
        """A positive number, or 0 if `zero` is true."""
        value = self.get(key, default)
        real = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not real or value != value or value < 0 or (value == 0 and not zero):
            raise self.error(key, f"it must be a number {'>=' if zero else '>'} 0")
        if value != 0 and not SMALLEST <= value <= LARGEST:
            raise self.error(key, f"it must be between {SMALLEST} and {LARGEST}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "it must be true or false")
        return value

    def only(self, key: str, *supported: Any) -> None:
        """Raises ValueError if the value is not one of these. An absent key means the first."""
        value = self.get(key, supported[0])
        if not any(value == s and isinstance(value, bool) == isinstance(s, bool) for s in supported):
            raise self.error(key, f"supported: {' or '.join(map(repr, supported))}")

    def table(self, key: str) -> Fields | None:
        """The JSON object under `key`; None if it is absent, null or empty."""
        value = self.get(key, None)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(key, "it must be a JSON object or null")
        return Fields(value, self.source, f"{self.prefix}{key}.")
