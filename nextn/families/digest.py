"""Identifies a checkpoint by a digest, without reading all of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

from nextn.families.files import weight_files

SMALL = ("config.json", "tokenizer.json", "token_map.json", "*.index.json")
SAMPLES, SAMPLE_BYTES = 64, 4096  # per file


def digest(path: Path) -> str:
    """A digest of a model's folder, or of a file: of names, sizes and samples, because reading all weights
    takes minutes. Raises ValueError if `path` does not exist."""
    if not path.exists():
        raise ValueError(f"{path}: there is no such file or folder on this machine")
    files = [path]
    if path.is_dir():
        files = [file for name in SMALL for file in sorted(path.glob(name))] + weight_files(path)
    made = hashlib.blake2b(digest_size=8)
    for file in files:
        size = file.stat().st_size
        made.update(f"{file.name if path.is_dir() else ''} {size}\n".encode())
        with file.open("rb") as data:
            for part in range(SAMPLES):
                data.seek(size * part // SAMPLES)
                made.update(data.read(SAMPLE_BYTES))
    return made.hexdigest()
