"""Profiles a running server: this process and its engines record intervals, which are written to one file.

A profile with a number of steps ends when the first engine has made this many steps; other engines may be
idle. If an engine dies, the profile ends without that engine's part.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

import nextn
from nextn.server.monitoring.open_requests import OpenRequests
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engines import Engines
from nextn.trace import TRACE, ProcessTrace
from nextn.trace_file import check_folder, file_name, write

log = logging.getLogger("nextn.server")

END_SECONDS = 5.0  # when the server ends, it waits this long for its engines' parts


class Written(msgspec.Struct):
    """The answer to /stop_profile. path: the trace, on the server's machine. steps: of each engine.
    intervals: their number in the file. left_out: number of the oldest intervals, which were dropped for lack
    of room."""

    path: str
    processes: list[str]
    steps: list[int]
    intervals: int
    left_out: int


@dataclass
class Profile:
    """One profile. first: see `StartProfile`. stopping: setting it ends the profile."""

    folder: Path
    prefix: str | None = None
    steps: int | None = None
    first: int | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    traces: list[ProcessTrace] = field(default_factory=list)  # empty until it ends
    writing: asyncio.Task[Written] | None = None


class Profiler:
    """Runs one profile at a time. model: the model's name, for the file."""

    def __init__(self, engine: Engines, model: str) -> None:
        self.engine, self.model = engine, model
        self.requests = OpenRequests()
        self._last: Profile | None = None

    @property
    def running(self) -> bool:
        return self._last is not None and not self._last.traces

    def start(self, profile: Profile) -> None:
        """Starts a profile. Raises ValueError if one runs already, OSError if no file can be written in its
        folder."""
        if self.running:
            raise ValueError("a profile is already running; POST /stop_profile ends it")
        check_folder(profile.folder)
        up = [client for client in self.engine.ranks if client.ready is not None]
        asked = [client.profile(profile.steps, profile.first) for client in up]
        TRACE.start("server")
        self._last = profile
        profile.writing = asyncio.create_task(self._finish(profile, up, asked))
        profile.writing.add_done_callback(lambda task: task.cancelled() or task.exception())  # already logged
        steps = "until /stop_profile" if profile.steps is None else f"for {profile.steps} steps"
        log.info("profiling %s; the trace will be in %s", steps, profile.folder)

    async def stop(self) -> Written:
        """Ends the profile that runs, and returns the result. If none runs, returns the last result. If that
        profile could not be written, tries again. Raises ValueError if there was no profile, OSError if its
        file cannot be written."""
        profile = self._last
        if profile is None or profile.writing is None:
            raise ValueError("no profile was started; POST /start_profile")
        profile.stopping.set()
        if profile.writing.done() and profile.writing.exception() is not None:
            profile.writing = asyncio.create_task(self._write(profile))
        return await asyncio.shield(profile.writing)

    async def close(self) -> None:
        """Called when the server ends. Writes the profile that runs, if there is one."""
        if self.running:
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(self.stop(), END_SECONDS)

    async def _finish(
        self,
        profile: Profile,
        clients: Sequence[EngineClient],
        asked: Sequence[asyncio.Future[ProcessTrace]],
    ) -> Written:
        stopping = asyncio.ensure_future(profile.stopping.wait())
        either: list[asyncio.Future[Any]] = [stopping, *asked]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        for client, future in zip(clients, asked, strict=True):
            if not future.done():
                client.end_profile()
        found = await asyncio.gather(*asked, return_exceptions=True)
        self.requests.record()
        profile.traces = [TRACE.take(), *(each for each in found if isinstance(each, ProcessTrace))]
        return await self._write(profile)

    async def _write(self, profile: Profile) -> Written:
        path, traces = profile.folder / file_name(profile.prefix), profile.traces
        about = {"nextn_version": nextn.__version__, "model": self.model}
        try:
            await asyncio.to_thread(write, path, traces, about)
        except OSError as e:
            log.error("%s cannot be written: %s; /stop_profile tries again", path, e.strerror or e)
            raise
        steps = [trace.steps for trace in traces[1:]]
        log.info("wrote a profile of %s steps: %s", "+".join(map(str, steps)) or 0, path)
        names = [trace.name for trace in traces]
        left_out = sum(trace.left_out for trace in traces)
        return Written(str(path), names, steps, sum(len(trace.intervals) for trace in traces), left_out)
