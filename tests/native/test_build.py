"""csrc/build.py compiles what is not up to date, and nothing else."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from support.native_build import the_build

COMPILER = """#!/bin/sh
# Stands for the compiler: writes the last word of its command, and notes that it did.
[ "$1" = --version ] && { cat @/version; exit; }
for word; do out=$word; done
echo made > "$out"
echo "$out" >> @/calls
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a compiler; `calls` grows by a line for every library that it makes."""
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
        """All of them or none."""
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
