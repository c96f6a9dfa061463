"""Runs the portable kernels on emulated 64-bit ARM: compiles tests/native/hostile.cpp for it and runs it with
QEMU.

Needs the cross compiler and QEMU (Debian: g++-aarch64-linux-gnu and qemu-user), otherwise it is skipped.
Takes minutes.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

COMPILER, EMULATOR = "aarch64-linux-gnu-g++", "qemu-aarch64"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-math-errno", "-pthread", "-static", "-DNX_FEW_ROWS"]


@pytest.mark.slow
def test_hostile_shapes(tmp_path: Path) -> None:
    if not (shutil.which(COMPILER) and shutil.which(EMULATOR)):
        pytest.skip(f"needs {COMPILER} and {EMULATOR}")
    source, program = Path(__file__).with_name("hostile.cpp"), tmp_path / "hostile"
    command = [COMPILER, *FLAGS, "-w", str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    done = subprocess.run([EMULATOR, str(program)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "all shapes ran\n"), done.stderr
