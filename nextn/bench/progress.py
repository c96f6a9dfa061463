"""Progress on stderr while a measurement runs: a bar, or plain lines where a bar would be noise."""

from __future__ import annotations

import sys
from types import TracebackType

from tqdm import tqdm


class Progress:
    """`total` texts (or other units) are to come. Without `bar` only messages are shown."""

    def __init__(self, total: int, bar: bool, unit: str = "texts") -> None:
        self._bar = tqdm(
            total=total, file=sys.stderr, disable=not bar, leave=False, dynamic_ncols=True,
            bar_format=f"{{desc}} {{bar}} {{n}}/{{total}} {unit}, {{elapsed}}",
        )  # fmt: skip

    def now(self, what: str) -> None:
        """Shows what is being done."""
        self._bar.set_description(what)

    def advance(self) -> None:
        """Counts one more unit."""
        self._bar.update()

    def say(self, line: str) -> None:
        tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bar.close()
