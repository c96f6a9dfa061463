"""A folder that is there complete or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """An empty folder to write to, beside `output`, and renamed to it when the block is done.

    After an error it is gone. Raises ValueError for an output that exists, unless it is an empty folder.
    """
    if output.exists() and not (output.is_dir() and not any(output.iterdir())):
        raise ValueError(f"{output} exists; name a new folder, or remove it first")
    output = output.absolute()
    output.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{output.name}-", dir=output.parent))
    try:
        folder = staging / output.name  # a folder of mkdtemp's is for nobody else's eyes
        folder.mkdir()
        yield folder
        for file in folder.iterdir():  # on the disk before the name is: a power cut leaves no empty files
            with file.open("rb+") as f:
                os.fsync(f.fileno())
        if output.exists():
            output.rmdir()  # empty; a folder that has been filled since is not replaced
        folder.rename(output)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
