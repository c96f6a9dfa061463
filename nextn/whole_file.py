"""Writes a file completely or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def unfinished(path: Path) -> Iterator[Path]:
    """Yields another path to write to. At the end, that file replaces `path`. After an exception, it is
    removed and `path` is unchanged."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file. Readers see either the old content or the new. Raises OSError."""
    with unfinished(path) as part:
        part.write_bytes(content)
