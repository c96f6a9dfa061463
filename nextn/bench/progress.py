"""Shows progress on stderr: a bar with messages, or only messages."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.progress import Progress as Display

from nextn.bench.console import console

REFRESHES = 4  # per second; few, because the bar must not take time from what is measured


class Progress:
    """Progress of `total` texts, or other units ("B": bytes). Without `bar` only messages are shown."""

    def __init__(self, total: int, bar: bool, unit: str = "texts") -> None:
        count: list[ProgressColumn] = [DownloadColumn()]
        if unit != "B":
            count = [MofNCompleteColumn(separator="/"), TextColumn(unit)]
        self._bar = bar
        self._console = console(sys.stderr, force=bar)
        self._display = Display(
            TextColumn("{task.description}"), BarColumn(None), *count, TimeElapsedColumn(),
            console=self._console, transient=True, expand=True, refresh_per_second=REFRESHES,
        )  # fmt: skip
        self._task = self._display.add_task("", total=total)

    def now(self, what: str) -> None:
        """Sets the bar's description of the current work."""
        self._display.update(self._task, description=what)

    def advance(self, by: int = 1) -> None:
        """Adds `by` units to the count."""
        self._display.advance(self._task, by)

    def at(self, done: int, total: int) -> None:
        """Sets the count and the total."""
        self._display.update(self._task, completed=done, total=total)

    def say(self, line: str) -> None:
        self._console.print(line, soft_wrap=True)

    def __enter__(self) -> Progress:
        if self._bar:
            self._display.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar:
            self._display.stop()
