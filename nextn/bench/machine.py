"""Describes the machine of a measurement."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from dataclasses import dataclass

from nextn.config import usable_cores
from nextn.machine import cpu_model
from nextn.ops.cpu.library import NoLibrary, able_levels


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int  # that this process can use
    python: str
    torch: str
    level: str = ""  # the best level of native kernels that the CPU can run; "" if they are not built

    @property
    def line(self) -> str:
        """One line for people."""
        cores = "1 core" if self.cores == 1 else f"{self.cores} cores"
        return f"{self.cpu}, {cores}; torch {self.torch}; Python {self.python}"

    @property
    def slug(self) -> str:
        """The machine as a part of a file name."""
        return slug(f"{self.cpu} {self.cores}c")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def this_machine() -> Machine:
    return Machine(
        cpu=cpu_model(),
        cores=usable_cores(),
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
        level=_level(),
    )


def _level() -> str:
    try:
        return able_levels()[-1]
    except NoLibrary:
        return ""
