"""Command-line options, and docs/options.md, from the dataclasses in nextn.config.

python -m nextn.cli.options > docs/options.md
"""

from __future__ import annotations

import argparse
import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

from nextn.cli.errors import CommandError
from nextn.config import EngineConfig
from nextn.server_config import REFUSED, ServerConfig

Config = TypeVar("Config", bound=EngineConfig)
UNSET = object()


@dataclasses.dataclass(frozen=True)
class Option:
    """One field of a config as the command line knows it."""

    name: str  # the field's
    flags: tuple[str, ...]  # with dashes; the first is the one that is documented
    type: type  # bool, int, float or str
    group: str
    default: object
    choices: tuple[str, ...]
    help: str
    words: Mapping[str, Any]  # that stand for values which the type does not read

    def read(self, text: str) -> Any:
        return self.words[text] if text in self.words else self.type(text)


def options_of(config: type[EngineConfig]) -> Iterator[Option]:
    hints = typing.get_type_hints(config)
    for field in dataclasses.fields(config):
        aliases = (alias.replace("_", "-") for alias in field.metadata["aliases"])
        flags = tuple(dict.fromkeys((f"--{field.name.replace('_', '-')}", *aliases)))
        kind = hints[field.name]
        if isinstance(kind, types.UnionType):
            (kind,) = (t for t in typing.get_args(kind) if t is not type(None))
        meta = field.metadata
        yield Option(
            field.name,
            flags,
            kind,
            meta["group"],
            field.default,
            meta["choices"],
            meta["help"],
            meta["words"],
        )


def add_options(parser: argparse.ArgumentParser, config: type[EngineConfig]) -> None:
    """Adds every option of `config`, the spellings of other engines, and those refused by name."""
    groups: dict[str, Any] = {}
    for option in options_of(config):
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        shown = option.help + ("" if option.default in (None, False) else f" (default: {option.default})")
        common: dict[str, Any] = {"dest": option.name, "default": UNSET, "help": shown.replace("%", "%%")}
        if option.type is bool:
            common["action"] = argparse.BooleanOptionalAction
        else:
            common["type"] = option.read if option.words else option.type
            common["metavar"] = "|".join((option.type.__name__.upper(), *option.words))
            if option.choices:
                common["choices"] = option.choices
                common["metavar"] = "|".join(option.choices)
        groups[option.group].add_argument(*option.flags, **common)
    parser.add_argument(
        "--enable-prefix-cache", action=PrefixCache, dest="disable_radix_cache", default=UNSET
    )
    parser.add_argument(  # SGLang's name of the default
        "--constrained-json-disable-any-whitespace",
        action="store_false",
        dest="constrained_json_any_whitespace",
        default=UNSET,
        help=argparse.SUPPRESS,
    )
    parser.add_argument("--enable-chunked-prefill", action=ChunkedPrefill, default=UNSET)
    if issubclass(config, ServerConfig):
        parser.add_argument("--scheduling-policy", action=SchedulingPolicy, choices=("fcfs", "priority"))
    for flag in REFUSED:
        parser.add_argument(flag.replace("_", "-"), action=Refuse)


def parse(args: argparse.Namespace, config: type[Config]) -> Config:
    """The checked config. Raises CommandError for a value out of range or a wrong combination."""
    names = {field.name for field in dataclasses.fields(config)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not UNSET}
    result = config(**given)
    try:
        result.check()
    except ValueError as e:
        raise CommandError(str(e)) from e
    return result


class Refuse(argparse.Action):
    """An option of another engine that nextn does not honour."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs="*", default=UNSET, help=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        reasons = {name.replace("_", "-"): reason for name, reason in REFUSED.items()}
        parser.error(f"{option_string} is not supported: {reasons[str(option_string)]}")


class Switch(argparse.Action):
    """xLLM's booleans: `--name`, `--name true`, `--name=false`."""

    def __init__(self, option_strings: Sequence[str], dest: str, **_: Any) -> None:
        super().__init__(option_strings, dest, nargs="?", default=UNSET, help=argparse.SUPPRESS)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if values not in (None, "true", "false", "1", "0"):
            parser.error(f"{option_string} is {values!r}: it must be true or false")
        self.switch(parser, namespace, values not in ("false", "0"))

    def switch(self, parser: Any, namespace: Any, on: bool) -> None:
        """Puts `on` into the namespace, or ends in parser.error."""


class PrefixCache(Switch):
    def switch(self, parser: Any, namespace: Any, on: bool) -> None:
        setattr(namespace, self.dest, not on)


class ChunkedPrefill(Switch):
    def switch(self, parser: Any, namespace: Any, on: bool) -> None:
        if not on:
            parser.error(
                "--enable-chunked-prefill false is not supported: prompts are always chunked; "
                "a --chunked-prefill-size as large as the longest prompt keeps it in one piece"
            )


class SchedulingPolicy(argparse.Action):
    """vLLM's: with `priority`, lower values go first."""

    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, default=UNSET, help=argparse.SUPPRESS, **kwargs)

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        namespace.schedule_low_priority_values_first = values == "priority"


def options_markdown() -> str:
    """docs/options.md."""
    lines = [
        "# Options of `nextn serve`",
        "",
        "This page lists every option of `nextn serve`, with default and aliases. `--a_b` is the same as "
        "`--a-b`. It is generated: `python -m nextn.cli.options > docs/options.md`.",
    ]
    group = ""
    for option in options_of(ServerConfig):
        if option.group != group:
            group = option.group
            lines += [
                "",
                f"## {group.capitalize()}",
                "",
                "| option | default | what it is |",
                "|---|---|---|",
            ]
        names = "<br>".join(f"`{flag}`" for flag in option.flags)
        if option.type is bool:
            names += f"<br>`--no-{option.flags[0][2:]}`"
        default = "" if option.default is None else f"`{str(option.default).lower()}`"
        if isinstance(option.default, str):
            default = f"`{option.default}`"
        text = option.help + (f" ({', '.join(f'`{c}`' for c in option.choices)})" if option.choices else "")
        lines.append(f"| {names} | {default} | {text.replace('|', chr(92) + '|')} |")
    lines += [
        "",
        "## Other engines' spellings",
        "",
        "| option | what it does |",
        "|---|---|",
        "| `--enable-prefix-cache true\\|false` | `--no-disable-radix-cache`, `--disable-radix-cache` |",
        "| `--enable-chunked-prefill true` | nothing: prompts are always chunked; `false` is refused |",
        "| `--constrained-json-disable-any-whitespace` | nothing: it is the default |",
        "| `--scheduling-policy priority` | `--schedule-low-priority-values-first` |",
        "",
        "## Refused by name",
        "",
        "| option | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_markdown(), end="")
