"""Loads csrc/build.py, a script outside the package, as a module."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

PATH = Path(__file__).parents[2] / "csrc" / "build.py"


def the_build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("csrc_build", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def knows(cxx: Sequence[str], flags: Sequence[str]) -> bool:
    """Whether the compiler accepts these flags."""
    command = [*cxx, *flags, "-x", "c++", "-fsyntax-only", "/dev/null"]
    return subprocess.run(command, capture_output=True).returncode == 0
