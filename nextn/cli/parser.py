"""The argument parser of every command. Errors have one line and exit code 2; for an unknown option they
suggest the nearest known one."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Callable, Collection
from typing import Any, NoReturn

# (words, known options) -> words with known options only, and a note about options without effect.
Translate = Callable[[list[str], Collection[str]], tuple[list[str], str]]


class Parser(argparse.ArgumentParser):
    """An ArgumentParser. `translate`, if set, first translates the words; it raises ValueError for options
    that are not supported, which ends in `error`.

    A positional `model` can be anywhere in the line. Before Python 3.13, argparse finds it only before the
    first option.
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
    """The error message for unknown options. It suggests for each the most similar known option, if any."""
    shown = []
    for flag in dict.fromkeys(flags):
        near = difflib.get_close_matches(flag, known, n=1, cutoff=0.7) or [
            name for name in known if flag.startswith("--") and len(flag) > 5 and name.startswith(flag)
        ]
        shown.append(f"{flag} (did you mean {near[0]}?)" if near else flag)
    return f"unrecognized arguments: {', '.join(shown)}"


def dashed(word: str) -> str:
    """Replaces underscores by dashes in an option's name. Its value and every other word stay unchanged.

    >>> dashed("--max_tokens_per_batch=64")
    '--max-tokens-per-batch=64'
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
