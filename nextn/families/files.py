"""Finds the files of a checkpoint folder, and reads the JSON files. Raises CheckpointError."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nextn.checkpoint_error import CheckpointError as CheckpointError
from nextn.config import hub_hint
from nextn.gguf.files import GGUF_FILES as GGUF_FILES

SHOWN = 10
LARGEST_JSON = 100_000_000  # maximum bytes; the largest file is DeepSeek-V3's index, with 9 million


def first_names(names: Sequence[str]) -> str:
    """The first 10 of `names` in one line, and the number of the others."""
    rest = len(names) - SHOWN
    return ", ".join(names[:SHOWN]) + (f" and {rest} more" if rest > 0 else "")


def checkpoint_folder(path: str | Path, option: str = "--model-path") -> Path:
    """`path` as a Path. Raises CheckpointError if it is not a folder; the error names its `option`."""
    folder = Path(path)
    if not folder.exists():
        if folder.suffix.lower() == ".gguf":
            raise CheckpointError(f"{folder}: there is no such file; {option} must name an existing file")
        raise CheckpointError(
            f"{folder}: there is no such folder; {option} must name a checkpoint folder{hub_hint(str(path))}"
        )
    if not folder.is_dir():
        raise CheckpointError(
            f"{folder} is a file; {option} must name the folder that contains config.json, or a GGUF file"
        )
    return folder


def contents(folder: Path) -> str:
    """The contents of `folder` as a part of a message."""
    names = sorted(p.name for p in folder.iterdir())
    return f"it contains {first_names(names)}" if names else "it is empty"


def gguf_files(folder: Path) -> list[Path] | None:
    """The GGUF files with the weights of this folder; None if it was not made from GGUF files. Raises
    CheckpointError."""
    if not (folder / GGUF_FILES).is_file():
        return None
    files = read_json(folder / GGUF_FILES).get("files")
    if not isinstance(files, list) or not files or not all(isinstance(name, str) for name in files):
        raise CheckpointError(f"{folder / GGUF_FILES}: files is {files!r}; it must be a list of paths")
    return [Path(name) for name in files]


def weight_files(folder: Path) -> list[Path]:
    """The files with a checkpoint's weights."""
    return gguf_files(folder) or sorted(folder.glob("*.safetensors"))


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file. Raises CheckpointError if the file is missing, too large, or not a JSON
    object."""
    if not path.is_file():
        raise CheckpointError(f"{path}: there is no such file in the folder; {contents(path.parent)}")
    if path.stat().st_size > LARGEST_JSON:
        raise CheckpointError(f"{path} has {path.stat().st_size} bytes; at most {LARGEST_JSON} are allowed")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise CheckpointError(f"{path} cannot be read: {e.strerror}") from e
    except (ValueError, RecursionError) as e:  # UnicodeDecodeError is a ValueError
        raise CheckpointError(f"{path} is not JSON: {e}") from e
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} contains a JSON {type(data).__name__}; it must contain a JSON object")
    return data
