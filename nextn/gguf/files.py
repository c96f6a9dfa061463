"""Recognises GGUF files, and names their models. It imports little, because every command uses it."""

from __future__ import annotations

import os
import re
from pathlib import Path

MAGIC = b"GGUF"
PART = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")
GGUF_FILES = "weights.gguf.json"  # a file in a folder made from GGUF files: {"files": [their paths]}


def is_gguf(path: Path) -> bool:
    """Whether this is a GGUF file, by its name or by its first bytes."""
    if not path.is_file():
        return False
    if path.suffix.lower() == ".gguf":
        return True
    try:
        with open(path, "rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def gguf_name(path: str) -> str | None:
    """The model's name, from the name of its file; None if that does not end with .gguf.

    >>> gguf_name("/models/GLM-4.7-Flash-Q4_K_M-00001-of-00002.gguf")
    'GLM-4.7-Flash-Q4_K_M'
    """
    name = os.path.basename(path)
    if not name.lower().endswith(".gguf"):
        return None
    part = PART.fullmatch(name)
    return part[1] if part else name[: -len(".gguf")]
