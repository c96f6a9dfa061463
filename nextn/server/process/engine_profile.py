"""The engine process's part of a profile: it records its own intervals and sends them at the end."""

from __future__ import annotations

from collections.abc import Callable

from nextn.server.process.messages import Profiled, StartProfile
from nextn.trace import TRACE


class EngineProfile:
    """Records at most one profile at a time. send: sends it to the server. rank: number of this engine, if
    there are several."""

    def __init__(self, send: Callable[[Profiled], None], rank: int | None) -> None:
        self._send, self._name = send, "engine" if rank is None else f"engine {rank}"
        self._call: int | None = None  # call number of the profile that runs

    def start(self, message: StartProfile, steps: int) -> None:
        """Begins a profile. steps: number of steps that the engine has made so far."""
        self.stop()
        self._call = message.call
        after = 0 if message.first is None else max(0, message.first - steps - 1)
        TRACE.start(self._name, message.steps, after)

    def stop(self) -> None:
        """Ends the profile that runs, if any, and sends it."""
        if self._call is not None:
            call, self._call = self._call, None
            self._send(Profiled(call, TRACE.take()))

    def stepped(self) -> None:
        """Called after each step. Ends the profile after its last step."""
        if self._call is not None and not TRACE.on:
            self.stop()
