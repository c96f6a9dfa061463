"""Returns memory to the system after large requests. The C library would otherwise keep freed memory."""

from __future__ import annotations

import asyncio
import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

SECONDS = 5.0  # between two checks; up to eight times as long while checks free little
GROWTH = 32 * 2**20  # bytes above the smallest size so far; with less, a trim is not worth its milliseconds
STATM = Path("/proc/self/statm")


async def trim_periodically(seconds: float = SECONDS, growth: int = GROWTH) -> None:
    """Checks the process's size periodically, and trims its memory. Returns at once if the C library has no
    `malloc_trim`, otherwise never."""
    trim = malloc_trim()
    if trim is None:
        return
    least, wait = resident(), seconds
    while True:
        await asyncio.sleep(wait)
        before = resident()
        least = min(least, before)
        gained = growth
        if before > least + growth:
            await asyncio.to_thread(trim, 0)
            gained = before - resident()
        wait = seconds if gained >= growth else min(2 * wait, 8 * seconds)


def malloc_trim() -> Callable[[int], int] | None:
    """glibc's function, or None with another C library or without /proc."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found if STATM.exists() else None


def resident() -> int:
    """Bytes of this process that are in physical memory."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
