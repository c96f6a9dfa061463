"""Reads the user's input. In a terminal, it has history, several lines and completion."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from nextn.bench.console import styled

PROMPT = "> "


def line_reader(commands: Mapping[str, str]) -> Callable[[], str]:
    """Returns a function that reads one input. It raises EOFError at the end, KeyboardInterrupt at Ctrl-C.
    commands: command -> description, for completion."""
    if not sys.stdin.isatty():
        return input
    return editor(commands) if styled(sys.stderr) else plain


def plain() -> str:
    print(PROMPT, end="", file=sys.stderr, flush=True)
    return input()


def editor(commands: Mapping[str, str]) -> Callable[[], str]:
    """A reader with an editor. It writes to standard error, because standard output is for answers. The
    history ends with the program."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
    from prompt_toolkit.output import create_output

    keys = KeyBindings()

    @keys.add("enter")
    def _send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    session: PromptSession[str] = PromptSession(
        PROMPT,
        multiline=True,
        prompt_continuation=" " * len(PROMPT),
        completer=WordCompleter(list(commands), meta_dict=dict(commands), sentence=True),
        key_bindings=keys,
        output=create_output(sys.stderr),
    )
    return session.prompt
