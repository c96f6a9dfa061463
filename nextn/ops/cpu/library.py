"""Loads the native CPU kernels (csrc/). They are called through ctypes (`nextn.ops.cpu.interface`).

lib/ has one library for each instruction set level. An engine uses the best level that this machine can run,
or the level that --cpu-isa names.
"""

from __future__ import annotations

from ctypes import CDLL
from functools import cache
from pathlib import Path

from nextn.config import CPU_LEVELS
from nextn.ops.cpu.interface import INTERFACE, SIGNATURES

FOLDER = Path(__file__).parent / "lib"
NOT_BUILT = "they were not built with nextn; install a C++17 compiler (g++ or clang++), and then nextn again"


class NoLibrary(Exception):
    """The native kernels cannot be used on this machine. The text says why."""


@cache
def library(level: str | None = None) -> CDLL:
    """The kernels at `level`; None: at the best level that is built and that this machine can run.

    Raises NoLibrary if they are not built or cannot be loaded.
    """
    if level is None:
        level = machine_level()[0]
    path = FOLDER / f"libnextn_{level}.so"
    if not path.exists():
        raise NoLibrary(NOT_BUILT)
    return _open(path)


def build_of(level: str) -> str:
    """A string that differs between builds of a level's kernels: file size and time."""
    found = (FOLDER / f"libnextn_{level}.so").stat()
    return f"{found.st_size}-{found.st_mtime_ns}"


def machine_level() -> tuple[str, str]:
    """(the best level that is built and that this machine can run, the reason). Raises NoLibrary."""
    able, built = able_levels(), runnable_levels()
    reason = f"the CPU can run {', '.join(able)}"
    if built[-1] != able[-1]:
        reason += f"; nextn was built without {able[-1]}"
    return built[-1], reason


def choose_level(asked: str) -> tuple[str, str]:
    """(the level of an engine with `--cpu-isa asked`, the reason).

    Raises NoLibrary, and ValueError for a level that cannot run on this machine.
    """
    if asked == "auto":
        return machine_level()
    able, built = able_levels(), runnable_levels()
    if asked not in built:
        obstacle = "nextn was built without it" if asked in able else "the CPU lacks it"
        raise ValueError(f"--cpu-isa {asked}: {obstacle}; this machine can run {', '.join(built)}")
    return asked, f"--cpu-isa is {asked}; this machine can run {', '.join(built)}"


def runnable_levels() -> tuple[str, ...]:
    """The levels that are built and that this machine can run, the best one last. Raises NoLibrary."""
    return tuple(name for name in able_levels() if (FOLDER / f"libnextn_{name}.so").exists())


def able_levels() -> tuple[str, ...]:
    """The levels that this machine can run, built or not, the best one last. Raises NoLibrary."""
    portable = FOLDER / "libnextn_portable.so"
    if not portable.exists():
        raise NoLibrary(NOT_BUILT)
    return CPU_LEVELS[: _open(portable).nx_machine_level() + 1]


def _open(path: Path) -> CDLL:
    try:
        lib = CDLL(str(path))
        for name, (result, arguments) in SIGNATURES.items():
            function = getattr(lib, name)
            function.restype, function.argtypes = result, arguments
    except (OSError, AttributeError) as e:
        raise NoLibrary(f"{path.name} cannot be loaded: {e}") from e
    if lib.nx_interface() != INTERFACE:
        raise NoLibrary(f"{path.name} was built from other sources than this nextn; install it again")
    return lib
