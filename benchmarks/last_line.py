"""How a benchmark script ends: its result as one line of JSON, printed and, if asked for, kept."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping
from pathlib import Path

from nextn.bench.machine import this_machine


def result_name(theme: str) -> str:
    """Of a result file, without its ending: by theme, hardware and date."""
    return f"{theme}_{this_machine().slug}_{datetime.date.today()}"


def tell(theme: str, result: Mapping[str, object], folder: Path | None) -> None:
    line = json.dumps(result)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{result_name(theme)}.json").write_text(line + "\n")
    print(line)
