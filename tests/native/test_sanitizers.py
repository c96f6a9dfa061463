"""The native kernels under the address, undefined-behaviour and thread sanitizers, on hostile shapes.

Builds tests/native/hostile.cpp twice: at the best level of this machine for addresses and undefined
behaviour, and portably for threads and undefined behaviour. `make test-native` runs this alone.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest
from support.native_build import the_build

from nextn.ops.cpu.library import NoLibrary, machine_level

HERE = Path(__file__).parent
FLAGS = ["-std=c++17", "-g1", "-O1", "-fno-omit-frame-pointer", "-ffp-contract=off", "-pthread", "-Wno-psabi"]
SANITIZERS = {
    "addresses": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    # The check of virtual tables reads memory from within the sanitizer, and is reported as a race itself.
    "threads": ["-fsanitize=thread,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"],
}


def level_flags(build: ModuleType, sanitizer: str) -> list[str]:
    if sanitizer == "threads":
        return []
    try:
        return list(build.LEVELS[machine_level()[0]])
    except NoLibrary:
        return []


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A program for each of SANITIZERS, built side by side. Skips where that cannot be done."""
    build, folder = the_build(), tmp_path_factory.mktemp("sanitizers")
    try:
        compiler = build.compiler().split()
    except build.NoCompiler as e:
        pytest.skip(str(e))
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")
    running = {}
    for name, flags in SANITIZERS.items():
        command = [*compiler, *FLAGS, *flags]
        found = subprocess.run(
            [*command, str(empty), "-o", str(folder / "empty")], capture_output=True, text=True
        )
        if found.returncode != 0:
            pytest.skip(f"{compiler[0]} cannot build for the sanitizer of {name}: {found.stderr[-300:]}")
        command += [*level_flags(build, name), str(HERE / "hostile.cpp"), "-o", str(folder / name)]
        running[name] = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for name, process in running.items():
        _, errors = process.communicate()
        assert process.returncode == 0, f"{name}:\n{errors}"
    return {name: folder / name for name in running}


def run(program: Path) -> subprocess.CompletedProcess[str]:
    command = [str(program)]
    if shutil.which("setarch"):  # the thread sanitizer's shadow does not fit every randomized layout
        command = ["setarch", "-R", *command]
    return subprocess.run(command, capture_output=True, text=True, timeout=200)


@pytest.mark.slow
@pytest.mark.parametrize("name", SANITIZERS)
def test_hostile_shapes(programs: dict[str, Path], name: str) -> None:
    done = run(programs[name])
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer cannot run under this kernel's memory layout")
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    assert done.stdout == "all shapes ran\n"
    assert done.stderr == ""
