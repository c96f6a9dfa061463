"""Prints the result of a benchmark script as one line of JSON and, if wanted, writes it to a file."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path

from nextn.bench.machine import this_machine


def result_name(theme: str) -> str:
    """The name of a result file without its ending: theme, hardware and date."""
    return f"{theme}_{this_machine().slug}_{datetime.date.today()}"


def tell(theme: str, result: Mapping[str, object], folder: Path | None) -> None:
    line = json.dumps(result)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result_name(theme)}.json").write_text(line + "\n")
    print(line)
