"""Where a user's cache is."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path:
    """nextn's folder in $XDG_CACHE_HOME or ~/.cache. A user without a home, as in some containers, has none:
    then nothing can be written there."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "nextn"
    except RuntimeError:
        return Path(os.devnull) / "nextn"
