"""Translates vLLM's --profiler-config into nextn's options."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

FOLDER = "--profile-dir"


def profiler_config(given: dict[str, Any], known: Collection[str]) -> list[str]:
    """Returns the option for the folder. given: the JSON of --profiler-config. Raises ValueError, which names
    the keys or values that nextn does not support."""
    if FOLDER not in known:
        raise ValueError("this command records no profiles")
    if (profiler := given.pop("profiler", None)) not in (None, "torch"):
        raise ValueError(
            f"its profiler is {profiler!r}; it must be 'torch', which selects nextn's own profiler"
        )
    folder = given.pop("torch_profiler_dir", "")
    if more := sorted(key for key in given if given[key] not in (None, False, 0)):
        raise ValueError(f"its keys {', '.join(more)} are unknown to nextn; it reads torch_profiler_dir")
    return [FOLDER, str(folder)] if folder else []
