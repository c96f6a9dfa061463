"""The known findings of each tool (matrix.json), and the tables of docs/interoperability.md made from them.

    python benchmarks/interop/matrix.py      # write the tables from matrix.json

On the page a table is between `<!-- matrix: NAME -->` and `<!-- end -->`. NAME is a tool's name or "all".
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from environments import ENVIRONMENTS
from findings import Finding

HERE = Path(__file__).resolve().parent
KNOWN = HERE / "matrix.json"
PAGE = HERE.parents[1] / "docs" / "interoperability.md"
PLACE = re.compile(r"(<!-- matrix: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
OUTCOMES = ("works", "fails", "not run")


@dataclass
class Tool:
    """A tool's findings. `missing`: why it was not run, or ""."""

    name: str
    version: str | None
    findings: list[Finding] = field(default_factory=list)
    missing: str = ""


def load() -> dict[str, Tool]:
    tools = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.is_file() else []
    return {
        tool["name"]: Tool(**{**tool, "findings": [Finding(**f) for f in tool["findings"]]}) for tool in tools
    }


def record(found: Sequence[Tool]) -> None:
    """Replaces the known findings of these tools and writes file and page. A tool without new findings keeps
    its known ones."""
    known = load()
    for tool in found:
        if tool.findings or tool.name not in known:
            known[tool.name] = tool
    known = {name: known[name] for name in ENVIRONMENTS if name in known}
    rows: list[dict[str, Any]] = [dataclasses.asdict(tool) for tool in known.values()]
    KNOWN.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page(known)


def write_page(known: Mapping[str, Tool]) -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8"), known), encoding="utf-8")


def news(tool: Tool, known: Mapping[str, Tool]) -> list[str]:
    """Uses that fail now and do not fail in `known`."""
    before = known[tool.name].findings if tool.name in known else []
    failing = {finding.use for finding in before if finding.outcome == "fails"}
    return [f.use for f in tool.findings if f.outcome == "fails" and f.use not in failing]


def with_tables(page: str, known: Mapping[str, Tool]) -> str:
    def filled(place: re.Match[str]) -> str:
        lines = summary(known) if place[2] == "all" else uses(known[place[2]])
        return place[1] + "\n".join(lines) + "\n"

    return PLACE.sub(filled, page)


def summary(known: Mapping[str, Tool]) -> list[str]:
    lines = ["| tool | version | works | fails | not run |", "|---|---|---:|---:|---:|"]
    for tool in known.values():
        counts = [sum(f.outcome == outcome for f in tool.findings) for outcome in OUTCOMES]
        lines.append(row(tool.name, tool.version or tool.missing, *map(str, counts)))
    return lines


def uses(tool: Tool) -> list[str]:
    if tool.missing:
        return [f"Not run: {tool.missing}."]
    lines = [f"| {tool.name} {tool.version} | | |", "|---|---|---|"]
    return lines + [row(f.use, f.outcome, f.detail) for f in tool.findings]


def row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    write_page(load())
