"""Makes the command-line options and docs/options.md from the configs' dataclasses.

python -m nextn.cli.options > docs/options.md
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from nextn.cli.errors import CommandError
from nextn.cli.parser import Parser
from nextn.cli.translate import translate
from nextn.config import EngineConfig
from nextn.other_engines import NOTHING, ONLY, REFUSED, REWRITTEN
from nextn.server_config import ServerConfig

Config = TypeVar("Config", bound=EngineConfig)
UNSET = object()
# The groups of options, in the order of --help and docs/options.md.
GROUPS = (
    "model", "parallelism", "memory", "scheduling", "speculation", "structured output", "server", "replicas",
    "disaggregation",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Option:
    """A command-line option: one field of a config."""

    name: str  # the field's name
    flags: tuple[str, ...]  # names with dashes; the first is the main one, the others are aliases
    type: type  # bool, int, float or str
    group: str
    default: object
    choices: tuple[str, ...]
    help: str
    words: Mapping[str, Any]  # word -> the value that it stands for, if `type` cannot read the word

    values: str  # description of the allowed values, for errors; "" if type and choices are enough

    def read(self, text: str) -> Any:
        """Converts a word to the option's value. `choices` and `words` match in any letter case. Raises
        argparse.ArgumentTypeError."""
        folded = {c.lower(): c for c in self.choices} | {w.lower(): v for w, v in self.words.items()}
        if text.lower() in folded:
            return folded[text.lower()]
        try:
            value = self.type(text)
        except ValueError as e:
            kind = {int: "a whole number", float: "a number"}[self.type]
            raise argparse.ArgumentTypeError(f"{text!r}: it must be {self.values or kind}") from e
        if value in self.words.values() and not self.choices:  # the internal number behind a word
            raise argparse.ArgumentTypeError(f"{text!r}: it must be {self.values}")
        return value


def options_of(config: type[EngineConfig]) -> Iterator[Option]:
    hints = typing.get_type_hints(config)
    in_order = sorted(dataclasses.fields(config), key=lambda field: GROUPS.index(field.metadata["group"]))
    for field in in_order:
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
            meta["values"],
        )


def add_options(parser: argparse.ArgumentParser, config: type[EngineConfig]) -> None:
    """Adds every option of `config` to the parser. The parser also accepts other engines' options, through
    `nextn.cli.translate`."""
    groups: dict[str, Any] = {}
    for option in options_of(config):
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        shown = option.help + ("" if option.default in (None, False) else f" (default: {option.default})")
        common: dict[str, Any] = {"dest": option.name, "default": UNSET, "help": shown.replace("%", "%%")}
        if option.type is bool:
            common["action"] = argparse.BooleanOptionalAction
        else:
            common["action"], common["type"] = Store, option.read
            common["metavar"] = "|".join((option.type.__name__.upper(), *option.words))
            if option.choices:
                common["choices"] = option.choices
                common["metavar"] = "|".join(option.choices)
        groups[option.group].add_argument(*option.flags, **common)
    if isinstance(parser, Parser):
        parser.translate = translate


def add_model(parser: argparse.ArgumentParser) -> None:
    """Adds the model as a positional argument, as in `vllm serve MODEL`; the same as --model-path."""
    parser.add_argument("model", nargs="?", help="the same as --model-path")


def one_model(args: argparse.Namespace, default: Any) -> Any:
    """The model, from its positional argument or its option. Raises CommandError if they differ."""
    option = default if args.model_path is UNSET else args.model_path
    if args.model is None:
        return option
    if option not in (default, args.model):
        flag, _ = args.spelled["model_path"]
        raise CommandError(f"the model is named twice: {args.model}, and {flag} {option}; leave one out")
    return args.model


def parse(args: argparse.Namespace, config: type[Config]) -> Config:
    """Makes the config and checks it. Raises CommandError for a value out of range or a wrong combination.
    Prints the note about options without effect to stderr; a server writes it to its log instead."""
    names = {field.name for field in dataclasses.fields(config)}
    given = {k: v for k, v in vars(args).items() if k in names and v is not UNSET}
    if hasattr(args, "model") and args.model is not None:
        given["model_path"] = one_model(args, None)
    result = config(**given)
    try:
        result.check()
    except ValueError as e:
        raise CommandError(str(e)) from e
    if args.note and not issubclass(config, ServerConfig):
        print(f"note: {args.note}", file=sys.stderr)
    return result


class Store(argparse.Action):
    """Stores a value. It is an error if two spellings of an option have different values. If one spelling is
    repeated, the last value counts."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        spelled = vars(namespace).setdefault("spelled", {})
        name, before = spelled.get(self.dest, (option_string, values))
        if name != option_string and before != values:
            parser.error(
                f"{name} {before} and {option_string} {values} are the same option; give one of them"
            )
        spelled[self.dest] = (option_string, values)
        setattr(namespace, self.dest, values)


def options_markdown() -> str:
    """The contents of docs/options.md."""
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
        "## Options of other engines",
        "",
        "Of SGLang's, vLLM's and xLLM's other options, each is one of the following. `*` stands for any part "
        "of a name. See [operations](operations.md#command-lines-from-vllm-sglang-and-xllm).",
        "",
        "**Another name** for an option of nextn:",
        "",
        "| option | the same as |",
        "|---|---|",
        "| `--speculative-config` JSON | `--speculative-algorithm`, `--speculative-num-steps`, "
        "`--speculative-draft-model-path` |",
        "| `--max-prefill-tokens` | `--chunked-prefill-size`; with both, the smaller one |",
        "| `--attn-dp-size N`, `--attention-data-parallel-size N` | `--dp-size N --enable-dp-attention` |",
        "| `--enable-ep-moe`, `--enable-deepep-moe` | `--ep-size` as large as `--tp-size` |",
        "| `--enable-expert-parallel` | the same; but with `--data-parallel-size D --tensor-parallel-size "
        "T`: `--tp-size D*T --dp-size D --enable-dp-attention --ep-size D*T` |",
        "| `--eplb-config` JSON | `--eplb-rebalance-num-iterations`, `--ep-num-redundant-experts` |",
        "| `--profiler-config` JSON | `--profile-dir` |",
        "| `--redundant-experts-num N` | `--ep-num-redundant-experts`, N for each of `--ep-size` |",
        *(f"| `{name}` | `{' '.join(words)}` |" for name, words in REWRITTEN.items()),
        "",
        "**Accepted, with a note in the log**, as there is nothing to do:",
        "",
        "| options | why |",
        "|---|---|",
        *(f"| {listed(names)} | {reason} |" for reason, names in NOTHING.items()),
        "",
        "**Accepted with some values**, with the same note, and refused with others:",
        "",
        "| options | values | why no others |",
        "|---|---|---|",
        *(f"| {listed(names)} | {listed(values)} | {reason} |" for names, values, reason in ONLY),
        "",
        "**Refused by name**, unless the value switches the feature off, such as 0, none or false:",
        "",
        "| options | why, or what to use instead |",
        "|---|---|",
        *(f"| {listed(names)} | {reason} |" for reason, names in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"


def listed(names: str) -> str:
    return ", ".join(f"`{name.removesuffix('=*').removesuffix('=')}`" for name in names.split())


if __name__ == "__main__":
    print(options_markdown(), end="")
