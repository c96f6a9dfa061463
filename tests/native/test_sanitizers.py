"""Runs the native kernels on hostile shapes under the address, undefined-behaviour and thread sanitizers.

Builds tests/native/hostile.cpp three times. For addresses and undefined behaviour: at the best level of this
machine, and at level amx with tiles in plain C++, since most machines have no AMX. For threads and undefined
behaviour: portably; this takes as long as the other two together, so only `make test-native` runs it. That
command also runs all shapes, of which `make test` runs a quarter.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from types import ModuleType

import pytest
from support.all_cases import ALL_CASES
from support.native_build import the_build

from nextn.ops.cpu.library import NoLibrary, able_levels, machine_level

HERE = Path(__file__).parent
FLAGS = [
    "-std=c++17", "-g1", "-fno-omit-frame-pointer", "-ffp-contract=off", "-pthread", "-Wno-psabi",
    "-DNX_FEW_ROWS",
]  # fmt: skip
# The checks of addresses make functions long, and GCC would spend half of its time on assigning registers
# loop by loop.
QUICK = "-fira-region=one"
ADDRESSES = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
SANITIZERS = {
    "addresses": ADDRESSES,
    "tiles": [*ADDRESSES, "-include", str(HERE / "emulated_tiles.h")],
    # The check of virtual tables reads memory inside the sanitizer, which reports that as a race.
    "threads": ["-fsanitize=thread,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"],
}


def effort(sanitizer: str) -> list[str]:
    """Few shapes run quickly even if nothing is optimized, and that takes a third of the time to compile."""
    if ALL_CASES:
        return ["-O1"]
    return ["-O0" if sanitizer == "addresses" else "-O1", "-DNX_FEW_SHAPES"]


def level_flags(build: ModuleType, sanitizer: str) -> list[str] | None:
    """The compiler's flags for the sanitizer's level. None if the machine cannot run that program."""
    able: tuple[str, ...] = ()
    with suppress(NoLibrary):
        able = able_levels()
    if sanitizer == "tiles":
        return list(build.LEVELS["amx"]) if "avx512bf16" in able else None
    return list(build.LEVELS[machine_level()[0]]) if able and sanitizer == "addresses" else []


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Builds, in parallel, a program for each of SANITIZERS that can be compiled and run here."""
    build, folder = the_build(), tmp_path_factory.mktemp("sanitizers")
    try:
        compiler = build.compiler().split()
    except build.NoCompiler as e:
        pytest.skip(str(e))
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")

    def knows(*flags: str) -> bool:
        command = [*compiler, *FLAGS, *flags, str(empty), "-o", str(folder / "empty")]
        return subprocess.run(command, capture_output=True).returncode == 0

    running = {}
    quick = [QUICK] if knows(QUICK) else []
    for name, flags in SANITIZERS.items():
        level = level_flags(build, name)
        if level is None or (name == "threads" and not ALL_CASES) or not knows(*flags, *level):
            continue
        command = [*compiler, *FLAGS, *quick, *effort(name), *flags, *level]
        command += [str(HERE / "hostile.cpp"), "-o", str(folder / name)]
        running[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        _, errors = process.communicate()
        assert process.returncode == 0, f"{name}:\n{errors}"
    return {name: folder / name for name in running}


def run(program: Path) -> subprocess.CompletedProcess[str]:
    command = [str(program)]
    if shutil.which("setarch"):  # the thread sanitizer's shadow memory does not fit every randomized layout
        command = ["setarch", "-R", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@pytest.mark.timeout(1200)  # the first case compiles, which takes minutes on slow machines
@pytest.mark.parametrize("name", SANITIZERS)
def test_hostile_shapes(programs: dict[str, Path], name: str) -> None:
    if name not in programs:
        pytest.skip("no compiler or CPU for this sanitizer, or for threads: make test-native")
    done = run(programs[name])
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer cannot run under this kernel's memory layout")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert done.stdout == "all shapes ran\n"
    assert done.stderr == ""
