"""The training data of `nextn-tiny`: Python sources, split into training files and held-out files.

The sources are the standard library of the running interpreter (with its tests), and the Python files of two
permissively licensed packages that nextn needs anyway (`torch`, `numpy`). Held-out files are standard library
modules chosen by a checksum of their name. Neither they nor their test files are trained on.

`python recipes/tiny/data.py` prints the files that would be used.
"""

from __future__ import annotations

import importlib.util
import sysconfig
import zlib
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("numpy", "torch")
# Tables, generated files and translations are skipped: no programmer wrote them line by line.
SKIP_DIRS = (
    "site-packages",
    "encodings",
    "pydoc_data",
    "lib2to3",
    "__pycache__",
    "turtledemo",
    "_vendor",
    "fx/passes/serialized_patterns",
)
SKIP_WORDS = ("cjkencodings", "_generated", "_meta_registrations", "keycodes")
MAX_BYTES = 300_000
MAX_DIGITS = 0.15  # a file with a larger share of digits is a table
HELD_OUT_ONE_IN = 16


@dataclass(frozen=True)
class Source:
    """One file. `name` is the same on all machines (`stdlib/json/decoder.py`)."""

    name: str
    text: str


def _read(root: Path, label: str) -> list[Source]:
    out = []
    for path in sorted(root.rglob("*.py")):
        rel = path.relative_to(root).as_posix()
        if any(part in rel for part in SKIP_DIRS) or any(word in rel for word in SKIP_WORDS):
            continue
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue
        if not 400 <= len(text) <= MAX_BYTES:
            continue
        if sum(ch.isdigit() for ch in text) > MAX_DIGITS * len(text):
            continue
        out.append(Source(f"{label}/{rel}", text))
    return out


def is_held_out(name: str) -> bool:
    """Whether a file is held out: about one in `HELD_OUT_ONE_IN` of the standard library's modules, without
    tests."""
    if not name.startswith("stdlib/") or "/test" in name or "/idle_test" in name:
        return False
    return zlib.crc32(name.encode()) % HELD_OUT_ONE_IN == 0


def _tests_a_held_out(name: str, held_out_stems: set[str]) -> bool:
    stem = Path(name).stem
    return "/test" in name and stem.startswith("test_") and stem[5:] in held_out_stems


def load() -> tuple[list[Source], list[Source], list[Source]]:
    """Returns (standard library training files, package training files, held-out files)."""
    stdlib = _read(Path(sysconfig.get_paths()["stdlib"]), "stdlib")
    held = [s for s in stdlib if is_held_out(s.name)]
    stems = {Path(s.name).stem for s in held}
    train = [s for s in stdlib if not is_held_out(s.name) and not _tests_a_held_out(s.name, stems)]
    extra: list[Source] = []
    for package in PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.origin is not None:
            extra += _read(Path(spec.origin).parent, package)
    return train, extra, held


if __name__ == "__main__":
    for label, files in zip(("stdlib", "packages", "held out"), load(), strict=True):
        print(f"{label:10s} {len(files):5d} files {sum(len(f.text) for f in files) / 1e6:8.2f} MB")
        if label == "held out":
            print(*(f.name for f in files), sep="\n")
