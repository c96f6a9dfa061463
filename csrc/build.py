"""Compiles the native CPU kernels, once for every instruction set level, into nextn/ops/cpu/lib/.

python csrc/build.py          # the package's build runs the same (hatch_build.py)

Needs a C++17 compiler: $CXX, or c++, g++ or clang++ from the path. Without one nextn runs on plain torch.
A library whose sources, flags and compiler are those it was made of is left as it is.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SOURCE = Path(__file__).resolve().parent
TARGET = SOURCE.parent / "nextn" / "ops" / "cpu" / "lib"
FLAGS = [
    "-std=c++17", "-O3", "-fPIC", "-shared", "-fvisibility=hidden", "-fno-math-errno", "-ffp-contract=off",
    "-pthread", "-Wall", "-Wextra", "-Wno-psabi", "-Wno-uninitialized", "-Wno-maybe-uninitialized",
]  # fmt: skip
AVX512 = ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx2", "-mfma"]
LEVELS: dict[str, list[str]] = {
    "portable": [],
    "avx2": ["-mavx2", "-mfma"],
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}


class NoCompiler(Exception):
    """There is no C++ compiler, or it cannot build for this machine; the text says what happened."""


def compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name
    raise NoCompiler("no C++ compiler: $CXX is not set, and c++, g++ and clang++ are not on the path")


def origin(cxx: list[str]) -> bytes:
    """What every library is made of besides its flags: the compiler's version and the sources."""
    version = subprocess.run([*cxx, "--version"], capture_output=True).stdout
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".h", ".cpp"))
    return version + b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources)


def build(target: Path = TARGET, extra: list[str] | None = None) -> list[Path]:
    """Compiles what is not up to date, for all levels of this machine's architecture. Returns the libraries.
    Raises NoCompiler."""
    cxx = compiler().split()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    target.mkdir(parents=True, exist_ok=True)
    levels = LEVELS if x86 else {"portable": []}
    made_of = origin(cxx)

    def one(level: str) -> Path | None:
        library = target / f"libnextn_{level}.so"
        part = library.with_suffix(".part")
        command = [*cxx, *FLAGS, *levels[level], *(extra or []), str(SOURCE / "nextn.cpp"), "-o", str(part)]
        key, wanted = (
            library.with_suffix(".key"),
            hashlib.sha256(repr(command).encode() + made_of).hexdigest(),
        )
        if library.exists() and key.exists() and key.read_text() == wanted:
            return library
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            key.unlink(missing_ok=True)  # never beside a library that it is not the key of
            part.replace(library)
            key.write_text(wanted)
            return library
        if level == "portable":
            raise NoCompiler(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
        library.unlink(missing_ok=True)  # an older compiler that does not know the level
        return None

    with ThreadPoolExecutor() as threads:
        done = [library for library in threads.map(one, levels) if library]
    return done


if __name__ == "__main__":
    try:
        print(*build(extra=sys.argv[1:]), sep="\n")
    except NoCompiler as e:
        sys.exit(str(e))
