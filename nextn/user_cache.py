"""The folder of a user's cache."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """nextn's folder in $XDG_CACHE_HOME or ~/.cache. For a user without a home, as in some containers,
    returns a path that nothing can be written to."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "nextn"
    except RuntimeError:
        return Path(os.devnull) / "nextn"
