"""Consoles for output: a terminal gets colours and live displays, a file or pipe gets plain text.

Plain text has no escape codes. A terminal gets plain text too if NO_COLOR or TERM=dumb is set. For a file or
a pipe, the console is WIDTH columns wide.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100  # columns of plain text that goes to a file or a pipe
# Control characters, with which a text could move the cursor or set the terminal's title.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def styled(stream: TextIO) -> bool:
    """Whether a stream gets colours and cursor movements."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(stream: TextIO, force: bool = False) -> Console:
    """Makes a console that prints texts unchanged: no markup, no highlighting. force: treat the stream as a
    terminal, for a live display."""
    from rich.console import Console

    colours = styled(stream)
    return Console(
        file=stream,
        force_terminal=colours or force,
        color_system="auto" if colours else None,
        width=None if stream.isatty() else WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_markdown(text: str, stream: TextIO) -> None:
    """Prints Markdown: formatted on a terminal that gets colours, as plain source otherwise."""
    if styled(stream):
        from rich.markdown import Markdown

        console(stream).print(Markdown(text))
    else:
        print(text, file=stream)


def harmless(text: str) -> str:
    """Replaces control characters, which a terminal would obey.

    >>> harmless("a\\x1b[2Jb\\n")
    'a\ufffd[2Jb\\n'
    """
    return CONTROL.sub("\ufffd", text)
