"""Starts engine processes, notices at once when one dies, and restarts it, a limited number of times.

With --enable-dp-attention, the groups' engines need each other in each step. If one dies, all end, and all
are started again.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import logging
import multiprocessing
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

from nextn.distributed.life import StopWatch, how_it_ended
from nextn.distributed.place import Place, places
from nextn.server.process import logs
from nextn.server.process.channel import Channel
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import PARENTS_SIGNALS, MakeEngine, run
from nextn.server.process.messages import Failed, FromEngine, Ready, Stop, encode
from nextn.server_config import ServerConfig

log = logging.getLogger("nextn.server")

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds before a start; doubled after each failed start
WINDOW_SECONDS = 600.0  # --max-engine-restarts limits the restarts within this time
LAST_WORDS_SECONDS = 0.5  # for messages of a dead engine that have not arrived yet
LOOK_SECONDS = 0.2  # between two checks whether an engine that loads is stopped
SOCKET_PATH_LIMIT = 80  # a Unix socket's path may have about 100 bytes
STOP_SECONDS = 2.0  # an engine that has not ended by then is killed


class StartupError(Exception):
    """The engine could not be started."""


@contextlib.contextmanager
def held_back_signals() -> Iterator[None]:
    """Blocks SIGINT and SIGTERM. A child that is started inside begins with them blocked, so that Ctrl-C
    cannot end it before it ignores them. This process gets the signals afterwards."""
    resource_tracker.ensure_running()  # if it started later, it would unblock the signals
    signal.pthread_sigmask(signal.SIG_BLOCK, PARENTS_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PARENTS_SIGNALS)


def private_folder() -> str:
    """A new folder with a path short enough for a Unix socket in it."""
    short = len(tempfile.gettempdir()) < SOCKET_PATH_LIMIT
    return tempfile.mkdtemp(prefix="nextn-", dir=None if short else "/tmp")


class EngineHandle:
    """One engine process and the socket to it. The future `died` is done when the process has ended.

    The socket is in a folder that only this user may enter. The folder is removed as soon as both ends are
    connected, so it never remains after the server has ended.
    """

    def __init__(
        self, config: ServerConfig, make: MakeEngine, rank: int | None = None, place: Place | None = None
    ) -> None:
        self.folder = private_folder()
        address = f"ipc://{self.folder}/engine"
        self.channel = Channel(address)
        spawn = multiprocessing.get_context("spawn")
        # Start it from the main thread: the kernel's parent-death signal comes when the starting thread ends.
        self.process: BaseProcess = spawn.Process(
            target=run, args=(config, address, os.getpid(), make, rank, place), name="nextn-engine"
        )
        with held_back_signals():
            self.process.start()
        loop = asyncio.get_running_loop()
        self.listens = False
        self.died: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self.process.sentinel, self._ended)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.sentinel)
        if not self.died.done():
            self.died.set_result(None)

    async def ready(self) -> Ready:
        """Waits until the engine is loaded. Raises StartupError if it fails, ends, or is stopped."""
        try:
            return await self._ready()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _ready(self) -> Ready:
        first: asyncio.Future[FromEngine] = asyncio.get_running_loop().create_future()

        def take(message: FromEngine) -> None:
            self.channel.stop_listening()
            first.set_result(message)

        failed = self.channel.listen(take)
        try:
            either: list[asyncio.Future[Any]] = [first, failed, self.died]
            watch = StopWatch(self.process.pid or 0)
            while not any(future.done() for future in either):
                await asyncio.wait(either, timeout=LOOK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if watch.stopped:  # a rank of it may be stopped as well, so none might notice
                    raise StartupError("the engine process was stopped while starting")
            if failed.done():
                failed.result()
            if not first.done():
                await asyncio.wait({first}, timeout=LAST_WORDS_SECONDS)
        finally:
            self.channel.stop_listening()
            first.cancel()  # unless it is done
        if not first.done() or first.cancelled():
            raise StartupError(f"the engine process ended while starting ({self.how_it_ended()})")
        message = first.result()
        if isinstance(message, Failed):
            raise StartupError(message.message)
        assert isinstance(message, Ready)
        self.listens = True
        return message

    def how_it_ended(self) -> str:
        self.process.join(1)
        return how_it_ended(self.process.exitcode)

    def ask_to_stop(self) -> bool:
        """Sends Stop. Returns False if the engine cannot read it, because it still loads or has ended."""
        if not self.listens or self.died.done():
            return False
        self.channel.send(encode(Stop()))
        return True

    def kill(self) -> None:
        if not self.died.done():
            self._ended()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.channel.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class Supervisor:
    """Keeps an engine running for each client. `clients` is one client, or the clients of all groups, whose
    engines start and end together."""

    def __init__(self, config: ServerConfig, clients: Sequence[EngineClient], make: MakeEngine) -> None:
        self.config, self.clients, self.make = config, clients, make
        self.handles: list[EngineHandle] = []
        self.restarts: collections.deque[float] = collections.deque()  # monotonic times, last WINDOW_SECONDS
        self.rank = clients[0].rank if len(clients) == 1 else None
        one = len(clients) == 1
        self._they, self._are, self._do = (
            ("the engine", "is", "does") if one else ("the engines", "are", "do")
        )

    def launch(self) -> list[EngineHandle]:
        """Starts the processes; they are not ready yet."""
        self.handles = []
        with contextlib.ExitStack() as undo:
            each: Sequence[Place | None] = [None]
            if len(self.clients) > 1:
                each = undo.enter_context(places(len(self.clients)))
            for client, place in zip(self.clients, each, strict=True):
                self.handles.append(EngineHandle(self.config, self.make, client.rank, place))
        return self.handles

    async def ready(self, handles: Sequence[EngineHandle]) -> list[Ready]:
        """Waits until all engines are loaded. If one cannot start, kills the others and raises
        StartupError."""
        waiting = [asyncio.ensure_future(handle.ready()) for handle in handles]
        try:
            return await asyncio.gather(*waiting)
        except BaseException:
            for handle in handles:
                handle.process.kill()
            await end(waiting)
            kill_all(handles)
            raise

    def attach(self, handles: Sequence[EngineHandle], readies: Sequence[Ready]) -> None:
        """Connects the engines to their clients, which can then send requests."""
        for client, handle, ready in zip(self.clients, handles, readies, strict=True):
            client.attach(ready, handle.channel)

    async def run(self, handles: Sequence[EngineHandle]) -> None:
        """Serves with the attached engines `handles`, and restarts them when they die. Never returns. Raises
        StartupError if they die too often."""
        logs.dp_rank.set(self.rank)
        while True:
            await self._serve(handles)
            delay = FIRST_DELAY
            while True:
                kill_all(handles)
                self._count_restart()
                log.info("%s %s started again in %.1f s", self._they, self._are, delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
                handles = self.launch()
                try:
                    readies = await self.ready(handles)
                except StartupError as e:
                    log.error("%s %s not start again: %s", self._they, self._do, e)
                    continue
                self.attach(handles, readies)
                log.info("%s %s ready again", self._they, self._are)
                break

    def _count_restart(self) -> None:
        """Counts one restart for all engines together."""
        now, most = time.monotonic(), self.config.max_engine_restarts
        while self.restarts and self.restarts[0] < now - WINDOW_SECONDS:
            self.restarts.popleft()
        if len(self.restarts) >= most:
            minutes = WINDOW_SECONDS / 60
            message = f"{self._they} ended again after {most} restarts in {minutes:.0f} minutes"
            raise StartupError(f"{message} (--max-engine-restarts)")
        self.restarts.append(now)
        for client in self.clients:
            client.metrics.restarts += 1

    async def _serve(self, handles: Sequence[EngineHandle]) -> None:
        """Passes on the engines' messages until one engine dies. When it returns, each waiting request of all
        engines has received an error."""
        each = zip(self.clients, handles, strict=True)
        serving = [asyncio.ensure_future(self._pass_on(client, handle)) for client, handle in each]
        try:
            done, _ = await asyncio.wait(serving, return_when=asyncio.FIRST_COMPLETED)
            for handle in handles:
                handle.process.kill()
            for task in done:
                task.result()  # raises the task's error
        finally:
            await end(serving)

    async def _pass_on(self, client: EngineClient, handle: EngineHandle) -> None:
        """Passes on messages until this engine dies."""
        logs.dp_rank.set(client.rank)
        failed = handle.channel.listen(client.receive)
        watching = asyncio.ensure_future(self._watchdog(client, handle))
        try:
            await asyncio.wait({failed, handle.died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            client.detach("the engine died while it worked on this request")
            handle.channel.stop_listening()
            watching.cancel()
        if failed.done():
            failed.result()  # raises the client's error
        theirs = "its requests fail" if len(self.clients) == 1 else "all groups end, and their requests fail"
        log.error("the engine process ended (%s); %s", handle.how_it_ended(), theirs)

    async def _watchdog(self, client: EngineClient, handle: EngineHandle) -> None:
        """Kills an engine that hangs: it has requests, and sent no message for --watchdog-timeout seconds."""
        seconds = self.config.watchdog_timeout
        while True:
            await asyncio.sleep(seconds / 4)
            if client.silent_for() > seconds:
                log.error("the engine has made no step for %g s (--watchdog-timeout); it is killed", seconds)
                handle.process.kill()
                return

    async def stop(self) -> None:
        """Asks all engines to end, waits up to STOP_SECONDS, and kills those that remain. Engines that still
        load are killed without being asked."""
        asked = [handle.died for handle in self.handles if handle.ask_to_stop()]
        if asked:
            await asyncio.wait(asked, timeout=STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        kill_all(self.handles)


def kill_all(handles: Sequence[EngineHandle]) -> None:
    """Kills all engines first and then waits, so that none continues to run during the wait."""
    for handle in handles:
        handle.process.kill()
    for handle in handles:
        handle.kill()


async def end(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
