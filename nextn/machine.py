"""The machine that this process runs on: its name and its caches."""

from __future__ import annotations

import platform
from pathlib import Path


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


def data_caches(folder: Path = Path("/sys/devices/system/cpu/cpu0/cache")) -> dict[int, int]:
    """level -> bytes of each data cache that Linux reports for the first core."""
    found: dict[int, int] = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind, size = (index / "type").read_text().strip(), (index / "size").read_text().strip()
            level = int((index / "level").read_text())
            if kind != "Instruction":
                found[level] = int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
        except (OSError, ValueError, KeyError, IndexError):
            continue
    return found
