"""Where output goes: a terminal gets colours and live displays, everything else plain text.

Plain text has no escape codes and the same width everywhere. A terminal gets it too where NO_COLOR or
TERM=dumb is set.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 100  # columns of plain text that goes to a file or a pipe
# A text must not move the cursor or set the terminal's title.
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def styled(stream: TextIO) -> bool:
    """Whether a stream takes colours and cursor movements."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def console(stream: TextIO, force: bool = False) -> Console:
    """Makes a console that prints texts as they are. force: a live display even where it is no terminal."""
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
    """Prints Markdown: laid out on a terminal that takes colours, as it is elsewhere."""
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
