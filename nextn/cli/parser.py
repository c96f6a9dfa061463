"""The parser of every command: errors in one line, exit code 2, and the nearest option for an unknown one."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

# What options of other engines become: words that the parser knows, and a note for the log.
Translate = Callable[[list[str], Collection[str]], tuple[list[str], str]]


class Parser(argparse.ArgumentParser):
    """`translate`, if set, goes over the words first; it raises ValueError for what is not supported.

    A positional `model` may stand anywhere: argparse before 3.13 finds it only before the first option.
    """

    translate: Translate | None = None

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        known = self._option_string_actions
        note = ""
        if self.translate is not None:
            try:
                words, note = self.translate(words, known)
            except ValueError as e:
                self.error(str(e))
        result, extra = super().parse_known_args(words, namespace)
        if self.translate is not None:
            result.note = note
        if getattr(result, "model", "") is None and extra and not extra[0].startswith("-"):
            result.model = extra.pop(0)
        unknown = [word.partition("=")[0] for word in extra if word.startswith("-")]
        if unknown:
            self.error(unrecognized(unknown, known))
        return result, extra

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def unrecognized(flags: Collection[str], known: Collection[str]) -> str:
    """The error for options that nothing knows, each with the known option that is most like it."""
    shown = []
    for flag in dict.fromkeys(flags):
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.7) or [
            name for name in known if flag.startswith("--") and len(flag) > 5 and name.startswith(flag)
        ]
        shown.append(f"{flag} (did you mean {near[0]}?)" if near else flag)
    return f"unrecognized arguments: {', '.join(shown)}"


def dashed(word: str) -> str:
    """An option's name with dashes for underscores; its value, and every other word, untouched.

    >>> dashed("--max_tokens_per_batch=64")
    '--max-tokens-per-batch=64'
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
