"""Declares options of a config dataclass, and the base class of every config."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


def option(
    default: Any,
    group: str,
    help: str,
    *aliases: str,
    choices: tuple[str, ...] = (),
    words: Mapping[str, Any] = MappingProxyType({}),
    values: str = "",
) -> Any:
    """words: other spellings of values, such as auto, that the field's type does not parse. values: the
    allowed values, for error messages."""
    meta: dict[str, Any] = {"group": group, "help": help, "aliases": aliases, "choices": choices}
    meta |= {"words": words, "values": values}
    return dataclasses.field(default=default, metadata=meta)


@dataclass(frozen=True)
class Options:
    """Fields made by `option`. `check` raises a ValueError that names the option, as on the command line, and
    the fix."""

    def need(self, ok: bool, name: str, rule: str) -> None:
        if not ok:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(self, name)!r}: {rule}")

    def check(self) -> None:
        for field in dataclasses.fields(self):
            choices, value = field.metadata["choices"], getattr(self, field.name)
            self.need(
                not choices or value is None or value in choices,
                field.name,
                f"choose from {', '.join(choices)}",
            )
