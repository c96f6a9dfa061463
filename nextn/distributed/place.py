"""What the engines of --enable-dp-attention share: memory, and sockets to wake each other.

with places(2) as (first, second):
    ...  # start a process with each, as an argument
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nextn.distributed.memory import HEADER, Memory, Numbers

# Bytes from the beginning of the memory, behind what csrc/world.h has there. STEPS, BEATS: a number of each
# group. PORT: where ranks of the torch model meet, of group 0.
STEPS, PORT, BEATS = 2048, 2560, 3072


@dataclass
class Place:
    """It can be passed to a spawned process, which then has the same memory and the same sockets. No read or
    write waits. memory: new and empty at every start."""

    group: int
    groups: int
    memory: Memory
    wake: socket.socket  # readable when another group has woken this one
    wakers: list[socket.socket]  # by group: a byte wakes it

    def wake_others(self, step: int) -> None:
        """Tells the other groups that this group begins step number `step`, counted from 0."""
        self._steps[self.group] = step + 1
        for group, waker in enumerate(self.wakers):
            # A group whose buffer is full is awake. If a process has ended, its supervisor ends all.
            if group != self.group:
                with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
                    waker.send(b"w")

    def woken(self, step: int) -> bool:
        """Whether another group has begun this step. Messages for earlier steps are ignored."""
        with contextlib.suppress(BlockingIOError):
            while self.wake.recv(4096):
                pass
        begun = enumerate(self._steps.first(self.groups))
        return any(number > step for group, number in begun if group != self.group)

    def beat(self) -> None:
        """Shows the other groups that this one lives."""
        self._beats[self.group] += 1

    def beats(self) -> Mapping[int, int | None]:
        """The counter of each other group that has begun to count."""
        counts = enumerate(self._beats.first(self.groups))
        return {group: count for group, count in counts if count and group != self.group}

    @cached_property
    def _steps(self) -> Numbers:
        return Numbers(self.memory.mapped(HEADER), STEPS)

    @cached_property
    def _beats(self) -> Numbers:
        return Numbers(self.memory.mapped(HEADER), BEATS)

    def __getstate__(self) -> Any:
        return {name: value for name, value in self.__dict__.items() if name not in ("_steps", "_beats")}

    def fileno(self) -> int:
        """For poll and select."""
        return self.wake.fileno()

    def close(self) -> None:
        self.memory.close()
        for end in (self.wake, *self.wakers):
            end.close()

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state)
        for end in (self.wake, *self.wakers):
            end.setblocking(False)


@contextlib.contextmanager
def places(groups: int) -> Iterator[list[Place]]:
    """One for each group. This process's ends are closed afterwards."""
    with contextlib.ExitStack() as undo:
        memory = Memory()
        undo.callback(memory.close)
        pairs = [socket.socketpair() for _ in range(groups)]
        for end in (end for pair in pairs for end in pair):
            undo.callback(end.close)
            end.setblocking(False)
        wakers = [writes for _, writes in pairs]
        yield [Place(group, groups, memory, reads, wakers) for group, (reads, _) in enumerate(pairs)]
