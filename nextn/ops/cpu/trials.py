"""Trials of the native kernels: their products, timing, and the file in which results are saved for later.

There is one file for each chip, number of cores, level and build:

    {"chip": "...", "cores": 2, "level": "amx", "build": "...",
     "formats": {"bf16": {"the level's default": [...], "AMX tiles": [...], ...}},
     "past caches": [0.86, 0.0]}
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from nextn.config import usable_cores
from nextn.machine import cpu_model
from nextn.ops.cpu import coded
from nextn.ops.cpu.interface import E4M3, F32
from nextn.ops.cpu.library import build_of, library
from nextn.ops.cpu.weights import Arena, PackedWeight
from nextn.user_cache import user_cache
from nextn.whole_file import write_whole

SECONDS = 0.01  # duration of a trial
SHAPE = (1024, 1024)  # outputs and inputs of a trial's weights


def least_seconds(options: Sequence[int], once: Callable[[int], None]) -> dict[int, float]:
    """option -> the minimum of several measured times. The options take turns."""
    best, began = dict.fromkeys(options, math.inf), time.perf_counter()
    for option in options:
        once(option)  # warm-up: wakes threads and fills caches
    while math.inf in best.values() or time.perf_counter() - began < SECONDS * len(options):
        for option in options:
            start = time.perf_counter()
            once(option)
            best[option] = min(best[option], time.perf_counter() - start)
    return best


@contextlib.contextmanager
def trial_products(
    level: str, kind: int, size: int, most: int
) -> Iterator[tuple[list[PackedWeight], Callable[[int, Sequence[PackedWeight]], None]]]:
    """Yields weights of this kind, at least `size` bytes in all, and a function that multiplies a number of
    rows, `most` at most, with some of them, on all cores."""
    kernels, (n_out, n_in) = library(level), SHAPE
    arena, block = Arena(), 128 if kind == E4M3 else coded.BLOCKS.get(kind, 0)
    weights = [PackedWeight(n_out, n_in, kind, block=block, arena=arena)]
    while sum(w.bytes for w in weights) < size:
        weights.append(PackedWeight(n_out, n_in, kind, block=block, arena=arena))
    x = torch.ones(most, n_in, dtype=torch.float32 if kind == F32 else torch.bfloat16)
    y = torch.empty(most, n_out)
    pool = kernels.nx_pool_new(usable_cores())

    def multiply(rows: int, some: Sequence[PackedWeight]) -> None:
        for weight in some:
            kernels.nx_linear(pool, x.data_ptr(), rows, weight.struct, y.data_ptr())

    try:
        yield weights, multiply
    finally:
        kernels.nx_pool_free(pool)


class TrialFile:
    """level: of the kernels. folder: by default nextn/kernels in the user's cache."""

    def __init__(self, level: str, folder: Path | None = None) -> None:
        self._key = {
            "chip": cpu_model(), "cores": usable_cores(), "level": level, "build": build_of(level),
        }  # fmt: skip
        name = hashlib.sha256(json.dumps(self._key).encode()).hexdigest()[:24]
        self._path = (folder or user_cache() / "kernels") / f"{name}.json"

    def read(self) -> dict[str, Any]:
        """The saved results; without results if there is no valid file."""
        try:
            kept = json.loads(self._path.read_bytes())
            if isinstance(kept["formats"], dict):
                return dict(kept)
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            pass
        return {**self._key, "formats": {}}

    def write(self, results: dict[str, Any]) -> None:
        """Raises OSError."""
        write_whole(self._path, json.dumps(results, indent=1).encode())

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lets one process at a time run the block. Raises OSError if the lock file cannot be written."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with open(self._path.with_suffix(".lock"), "w") as held:
            with contextlib.suppress(ImportError):  # Windows has no fcntl: two processes may measure at once
                import fcntl

                fcntl.flock(held, fcntl.LOCK_EX)
            yield
