"""Gives memory back to the system after large requests: the C library would keep what was freed."""

from __future__ import annotations

import asyncio
import ctypes
import resource
from collections.abc import Callable
from pathlib import Path

SECONDS = 5.0  # between two checks; up to eight times that while they free little
GROWTH = 32 * 2**20  # bytes above the smallest size so far; from there on it is worth a few milliseconds
STATM = Path("/proc/self/statm")


async def give_back(seconds: float = SECONDS, growth: int = GROWTH) -> None:
    """Checks now and then. Returns at once if this C library cannot do it, else never."""
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
    """glibc's; None elsewhere."""
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    return found if STATM.exists() else None


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(STATM.read_text().split()[1]) * resource.getpagesize()
