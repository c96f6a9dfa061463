"""Compiles the native CPU kernels, once for every instruction set level, into nextn/ops/cpu/lib/.

python csrc/build.py              # every level of this machine's architecture, as for a wheel
python csrc/build.py --runnable   # the levels that this machine can run, as for an editable install

Needs a C++17 compiler: $CXX, or c++, g++ or clang++ on the path. Without one nextn runs on plain torch.
A library is compiled again only if its sources, its flags or the compiler have changed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
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
    "avx2": ["-mavx2", "-mfma", "-mf16c"],
    "avx512": AVX512,
    "avx512bf16": [*AVX512, "-mavx512bf16"],
    "amx": [*AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16"],
}
# A program that prints the number of the best level that the machine can run.
PROBE = '#include <cstdio>\n#include "machine.h"\nint main() { std::printf("%d", machine_level()); }\n'


class NoCompiler(Exception):
    """There is no C++ compiler, or it cannot build for this machine. The text gives the reason."""


def compiler() -> str:
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        if name and shutil.which(name.split()[0]):
            return name
    raise NoCompiler("no C++ compiler: $CXX is not set, and c++, g++ and clang++ are not on the path")


def origin(cxx: list[str]) -> bytes:
    """The compiler's version and the sources, with their names: the part of a key that all levels share."""
    version = subprocess.run([*cxx, "--version"], capture_output=True).stdout
    sources = sorted(path for path in SOURCE.iterdir() if path.suffix in (".h", ".cpp"))
    return version + b"".join(path.name.encode() + b"\0" + path.read_bytes() for path in sources)


def runnable(cxx: list[str]) -> list[str]:
    """The levels that this machine can run. All levels if the probe does not compile or run."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            program = Path(folder) / "probe"
            command = [*cxx, "-std=c++17", f"-I{SOURCE}", "-x", "c++", "-", "-o", str(program)]
            subprocess.run(command, input=PROBE, text=True, check=True, capture_output=True)
            best = int(subprocess.run([program], capture_output=True, check=True).stdout)
    except (subprocess.CalledProcessError, OSError, ValueError):
        return list(LEVELS)
    return list(LEVELS)[: best + 1]


def build(target: Path = TARGET, extra: list[str] | None = None, all_levels: bool = True) -> list[Path]:
    """Compiles the libraries that are not up to date.

    all_levels: all levels of this machine's architecture, else those that the machine can run. extra: more
    flags.
    Returns the libraries that are up to date at the end. Raises NoCompiler if there is no compiler, or if the
    portable level does not compile.
    """
    cxx = compiler().split()
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    target.mkdir(parents=True, exist_ok=True)
    levels = ["portable"] if not x86 else list(LEVELS) if all_levels else runnable(cxx)
    made_of = origin(cxx)

    def one(level: str) -> Path | None:
        library = target / f"libnextn_{level}.so"
        part = library.with_suffix(".part")
        command = [*cxx, *FLAGS, *LEVELS[level], *(extra or []), str(SOURCE / "nextn.cpp"), "-o", str(part)]
        key, wanted = (
            library.with_suffix(".key"),
            hashlib.sha256(repr(command).encode() + made_of).hexdigest(),
        )
        if library.exists() and key.exists() and key.read_text() == wanted:
            return library
        if level not in levels:
            library.unlink(missing_ok=True)  # it was made from other sources
            return None
        found = subprocess.run(command, capture_output=True, text=True)
        if found.returncode == 0:
            key.unlink(missing_ok=True)  # a key must never be beside another build's library
            part.replace(library)
            key.write_text(wanted)
            return library
        if level == "portable":
            raise NoCompiler(f"{' '.join(command)} failed:\n{found.stderr[-2000:]}")
        library.unlink(missing_ok=True)  # an older compiler does not know the level
        return None

    with ThreadPoolExecutor() as threads:
        done = [library for library in threads.map(one, LEVELS) if library]
    return done


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compiles the native CPU kernels.")
    parser.add_argument("--runnable", action="store_true", help="only levels that this machine can run")
    parser.add_argument("--target", type=Path, default=TARGET, help="folder of the libraries")
    args, flags = parser.parse_known_args()
    try:
        print(*build(args.target, flags, not args.runnable), sep="\n")
    except NoCompiler as e:
        sys.exit(str(e))
