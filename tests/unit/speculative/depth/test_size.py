"""The controller stays small enough to be read in one go: its first two forms were not."""

from __future__ import annotations

import ast
from pathlib import Path

import nextn

PACKAGE = Path(nextn.__file__).parent
FILES = [*sorted((PACKAGE / "speculative" / "depth").glob("*.py")), PACKAGE / "engine" / "step_timing.py"]


def test_all_of_it_is_looked_at() -> None:
    assert {"controller.py", "cost.py", "value.py", "step_timing.py"} <= {file.name for file in FILES}


def test_lines() -> None:
    lines = [line for file in FILES for line in file.read_text().splitlines() if line.strip()]
    assert len(lines) <= 400


def test_constants() -> None:
    names = []
    for file in FILES:
        for node in ast.parse(file.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            for target in targets:
                for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                    if isinstance(name, ast.Name) and name.id.isupper():
                        names.append(name.id)
    assert len(names) <= 20, names
