"""Makes a checkpoint folder from a GGUF file: config.json and the tokenizer, from the file's keys, and the
path of the GGUF file, whose weights are read later.

    gguf_folder(Path("DeepSeek-V3-Q4_K_M.gguf"))  ->  ~/.cache/nextn/gguf/DeepSeek-V3-Q4_K_M-1f0c…

The folder is about as large as the tokenizer. It is made once for each file and version of nextn.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from nextn import __version__
from nextn.checkpoint_error import CheckpointError
from nextn.gguf.architectures import architecture
from nextn.gguf.architectures.common import COPIES
from nextn.gguf.files import GGUF_FILES, PART, gguf_name
from nextn.gguf.parts import Parts, read_parts
from nextn.gguf.tokenizer import tokenizer_files
from nextn.gguf.types import READABLE
from nextn.user_cache import user_cache

SHOWN = 5
EDITION = 1  # increase it if this package makes different files from the same GGUF file


def gguf_folder(path: Path) -> Path:
    """The folder of this file; it is made if it does not exist. Raises CheckpointError if this is not a GGUF
    file, if nextn does not serve its model, or if the folder cannot be written."""
    file = path.absolute()
    root = user_cache() / "gguf"
    folder = root / f"{gguf_name(file.name) or file.name}-{_digest(file)}"
    if folder.is_dir():
        return folder
    files = _contents(read_parts(file))
    try:
        root.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".", dir=root))
        try:
            for name, content in files.items():
                (made / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")
            made.chmod(0o755)
            if not folder.is_dir():
                made.rename(folder)
        except OSError:
            if not folder.is_dir():  # if it exists, another process was first
                raise
        finally:
            shutil.rmtree(made, ignore_errors=True)
    except OSError as e:
        raise CheckpointError(
            f"{path}: its tokenizer and config cannot be written to {root} ({e.strerror}); set "
            "XDG_CACHE_HOME to another folder"
        ) from e
    return folder


def _digest(file: Path) -> str:
    """A digest of everything that determines the folder's contents: version, and paths, sizes and times of
    the files."""
    named = PART.fullmatch(file.name)
    files = sorted(file.parent.glob(f"{_escaped(named[1])}-*-of-{named[3]}.gguf")) if named else [file]
    stats = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files]
    return hashlib.sha256(repr((__version__, EDITION, stats)).encode()).hexdigest()[:16]


def _escaped(name: str) -> str:
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _contents(parts: Parts) -> dict[str, Any]:
    meta, tensors = parts.meta, parts.tensors
    arch = architecture(meta)
    if not tensors:
        raise CheckpointError(f"{meta.path}: it contains only a vocabulary, no weights")
    unreadable = [
        f"{t.name} ({t.type.name})"
        for t in tensors.values()
        if t.type.name not in READABLE and not t.name.endswith(COPIES)
    ]
    if unreadable:
        more = f" and {len(unreadable) - SHOWN} more" if len(unreadable) > SHOWN else ""
        raise CheckpointError(
            f"{meta.path}: {len(unreadable)} tensors are of a type that nextn does not read: "
            f"{', '.join(unreadable[:SHOWN])}{more}; supported are {', '.join(READABLE)}"
        )
    arch.tensors(meta, tensors)  # raises if the tensors do not fit the architecture
    return {
        "config.json": arch.config(meta, tensors, parts.weights),
        **tokenizer_files(meta),
        GGUF_FILES: {"files": [str(header.path) for header in parts.headers]},
    }
