"""csrc/build.py, which is a script and no part of the package."""

from __future__ import annotations

import importlib.util
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
