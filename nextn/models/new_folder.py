"""Writes a folder that exists either complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """An empty folder to write to, beside `output`. It is renamed to `output` when the block is done.

    After an error it is removed. Raises ValueError if `output` exists, unless it is an empty folder.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{output} exists; name a new folder, or remove it first")
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        folder = staging / output.name  # only the owner can read a folder that mkdtemp makes
        folder.mkdir()
        yield folder
        for file in folder.iterdir():  # on disk before the rename: a power cut leaves no empty files
            with file.open("rb+") as f:
                os.fsync(f.fileno())
        if output.exists():
            output.rmdir()  # it was empty; if another process has filled it since, this raises OSError
        folder.rename(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
