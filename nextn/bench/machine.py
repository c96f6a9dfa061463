"""What a measurement ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Machine:
    cpu: str
    cores: int  # that this process may use
    python: str
    torch: str


def this_machine() -> Machine:
    affinity = getattr(os, "sched_getaffinity", None)
    return Machine(
        cpu=cpu_model(),
        cores=len(affinity(0)) if affinity else os.cpu_count() or 1,
        python=platform.python_version(),
        torch=importlib.metadata.version("torch"),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.processor() or platform.machine()
