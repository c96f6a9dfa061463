"""When a scripted engine may make its next step, and with which tokens. Needs nothing but Python, for engines
of other virtual environments."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 0.05  # for the clients, at a time: in between, messages are read
NAP_SECONDS = 2e-4


class Brake:
    """A count of tokens that two processes share through a file."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), 8)

    def get(self) -> int:
        return int(struct.unpack("q", self._shared[:])[0])

    def set(self, count: int) -> None:
        self._shared[:] = struct.pack("q", count)


class ScriptedSteps:
    """Never runs ahead of the clients by more than `lead` steps: they count what they have received in the
    file `brake`. per_step: tokens of each request, at each step. step_seconds: of a step, at least."""

    def __init__(self, brake: Path, lead: int, step_seconds: float, per_step: int) -> None:
        self.brake, self.lead = Brake(brake), lead
        self.step_seconds, self.per_step = step_seconds, per_step
        self.made = 0  # tokens, less those of requests that were aborted
        self._next = 0.0  # when the next step may end

    def wait(self, running: int) -> bool:
        """For a step of so many requests. False: not yet, though a moment was waited for."""
        count = self.per_step * running
        deadline = time.perf_counter() + WAIT_SECONDS
        while self.made + count - self.brake.get() > self.lead * count or time.perf_counter() < self._next:
            time.sleep(NAP_SECONDS)
            if time.perf_counter() > deadline:
                return False
        self._next = max(self._next, time.perf_counter() - self.step_seconds) + self.step_seconds
        return True

    def tokens(self, script: Sequence[int], had: int, most: int) -> list[int]:
        """The next ones of a request that has `had` of `most`."""
        begin = had % len(script)
        tokens = [*script, *script][begin : begin + self.per_step][: most - had]
        self.made += len(tokens)
        return tokens
