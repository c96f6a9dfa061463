"""csrc/build.py compiles only libraries that are not up to date, and the sources are valid C++ at every
level."""

from __future__ import annotations

import platform
import stat
import subprocess
from pathlib import Path

import pytest
from support.all_cases import ALL_CASES
from support.native_build import knows, the_build

from nextn.ops.cpu.library import NoLibrary, able_levels

COMPILER = """#!/bin/sh
# Stands for the compiler: writes the last word of its command, and notes that it did.
[ "$1" = --version ] && { cat @/version; exit; }
for word; do out=$word; done
echo made > "$out"
echo "$out" >> @/calls
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sources and a script in place of the compiler. `calls` gets a line for every library that
    it makes."""
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER.replace("@", str(tmp_path)))
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "version").write_text("12\n")
    (tmp_path / "calls").touch()
    sources = tmp_path / "csrc"
    sources.mkdir()
    (sources / "nextn.cpp").write_text("int x;\n")
    monkeypatch.setenv("CXX", str(compiler))
    return tmp_path


def test_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = the_build()
    monkeypatch.setattr(build, "SOURCE", folder / "csrc")
    target = folder / "lib"

    def compiled(extra: list[str] | None = None) -> bool:
        """Whether all libraries were compiled. Otherwise none was."""
        (folder / "calls").write_text("")
        libraries = build.build(target, extra)
        assert all(library.read_text() == "made\n" for library in libraries)
        calls = len((folder / "calls").read_text().splitlines())
        assert calls in (0, len(libraries))
        return calls > 0

    assert compiled()
    assert not compiled()
    assert compiled(["-g"])
    assert compiled()
    (folder / "csrc" / "new.h").write_text("")
    assert compiled()
    (folder / "version").write_text("13\n")
    assert compiled()
    assert not compiled()
    for library in target.glob("*.so"):
        library.unlink()
    assert compiled()


def test_only_what_the_machine_runs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries of other levels stay as long as they are up to date."""
    build, target = the_build(), folder / "lib"
    monkeypatch.setattr(build, "SOURCE", folder / "csrc")
    monkeypatch.setattr(build, "runnable", lambda _: ["portable"])

    def names(all_levels: bool) -> set[str]:
        build.build(target, all_levels=all_levels)
        return {library.stem.removeprefix("libnextn_") for library in target.glob("*.so")}

    assert names(False) == {"portable"}
    if names(True) == {"portable"}:
        return  # not an x86 machine
    assert names(True) == names(False) == set(build.LEVELS)
    (folder / "csrc" / "new.h").write_text("")
    assert names(False) == {"portable"}


def test_levels_of_this_machine() -> None:
    build = the_build()
    try:
        able, cxx = able_levels(), build.compiler().split()
    except (NoLibrary, build.NoCompiler) as e:
        pytest.skip(str(e))
    assert tuple(build.runnable(cxx)) == able


def test_where_no_program_can_be_made_all_levels_are_built(folder: Path) -> None:
    build = the_build()
    assert build.runnable(build.compiler().split()) == list(build.LEVELS)


@pytest.mark.skipif(platform.machine().lower() not in ("x86_64", "amd64"), reason="these are levels of x86")
def test_levels_that_are_not_built_here_are_valid_cpp() -> None:
    """`make setup` compiles only the levels that this machine can run. `make test-all` checks every level."""
    build = the_build()
    try:
        cxx = build.compiler().split()
    except build.NoCompiler as e:
        pytest.skip(str(e))
    levels = set(build.LEVELS) - set(build.runnable(cxx))
    if "amx" in levels and not ALL_CASES:
        levels.discard("avx512bf16")  # amx has its code, but for what tiles replace
    for level in levels:
        flags = build.LEVELS[level]
        if not knows(cxx, flags):
            continue  # the compiler is too old for this level
        command = [*cxx, *build.FLAGS, *flags, "-fsyntax-only", str(build.SOURCE / "nextn.cpp")]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
