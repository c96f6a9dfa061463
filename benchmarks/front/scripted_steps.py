"""The time and the tokens of a scripted engine's next step. Uses only Python's standard library, for engines
in other virtual environments."""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Sequence
from pathlib import Path

WAIT_SECONDS = 0.05  # maximum time of one wait for the clients; between two waits messages are read
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
    """Steps that are ahead of the clients by at most `lead`. The clients count the tokens that they have
    received in the file `brake`. per_step: tokens of each request in each step. step_seconds: minimum time of
    a step."""

    def __init__(self, brake: Path, lead: int, step_seconds: float, per_step: int) -> None:
        self.brake, self.lead = Brake(brake), lead
        self.step_seconds, self.per_step = step_seconds, per_step
        self.made = 0  # tokens, less those of requests that were aborted
        self._next = 0.0  # earliest time at which the next step can end

    def wait(self, running: int) -> bool:
        """Waits for a step of `running` requests, at most WAIT_SECONDS. Returns whether it can be made."""
        count = self.per_step * running
        deadline = time.perf_counter() + WAIT_SECONDS
        while self.made + count - self.brake.get() > self.lead * count or time.perf_counter() < self._next:
            time.sleep(NAP_SECONDS)
            if time.perf_counter() > deadline:
                return False
        self._next = max(self._next, time.perf_counter() - self.step_seconds) + self.step_seconds
        return True

    def tokens(self, script: Sequence[int], had: int, most: int) -> list[int]:
        """The next tokens of a request that has `had` of its `most` tokens."""
        begin = had % len(script)
        tokens = [*script, *script][begin : begin + self.per_step][: most - had]
        self.made += len(tokens)
        return tokens
