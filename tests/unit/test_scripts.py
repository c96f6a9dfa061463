"""Scripts that no other test runs, and tests that need a GPU: what they import from nextn and from the tests'
support is there."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "examples", "tests/gpu")
SCRIPTS = [script for folder in FOLDERS for script in sorted((ROOT / folder).rglob("*.py"))]


def imported() -> dict[tuple[str, str], list[str]]:
    """(module, name) -> the scripts that import it."""
    found: dict[tuple[str, str], list[str]] = {}
    for script in SCRIPTS:
        for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for each in node.names:
                    found.setdefault((node.module, each.name), []).append(str(script.relative_to(ROOT)))
    return {key: found[key] for key in found if key[0].partition(".")[0] in ("nextn", "support")}


def is_there(module: str, name: str) -> bool:
    if hasattr(importlib.import_module(module), name):
        return True
    try:
        importlib.import_module(f"{module}.{name}")
    except ModuleNotFoundError:
        return False
    return True


@pytest.mark.skipif(sys.platform != "linux", reason="no triton elsewhere")
def test_what_scripts_import_is_there() -> None:
    names = imported()
    assert len(names) > 100
    missing = {f"{each[0]}.{each[1]}": scripts for each, scripts in names.items() if not is_there(*each)}
    assert missing == {}
