"""Starts an engine process, notices at once when it dies, and starts another, a limited number of times."""

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
from collections.abc import Iterator
from multiprocessing import resource_tracker
from multiprocessing.process import BaseProcess
from typing import Any

import zmq.asyncio

from nextn.distributed.life import how_it_ended
from nextn.server.process import logs
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_process import PARENTS_SIGNALS, MakeEngine, run
from nextn.server.process.messages import Failed, FromEngine, Ready, Stop, decode_from_engine, encode
from nextn.server_config import ServerConfig

log = logging.getLogger("nextn.server")

FIRST_DELAY, LONGEST_DELAY = 0.5, 30.0  # seconds before a start; doubled each time that one fails
WINDOW_SECONDS = 600.0  # in which restarts are counted
LAST_WORDS_SECONDS = 0.5  # for messages of a dead engine that are still under way
SOCKET_PATH_LIMIT = 80  # a Unix socket's path may have about 100 bytes
STOP_SECONDS = 2.0  # for an engine to end by itself; then it is killed


class StartupError(Exception):
    """The engine could not be started. `mistake`: the user's to mend, no traceback was printed."""

    def __init__(self, message: str, mistake: bool) -> None:
        super().__init__(message)
        self.mistake = mistake


@contextlib.contextmanager
def held_back_signals() -> Iterator[None]:
    """A child that is started in here begins with SIGINT and SIGTERM blocked, so that Ctrl-C cannot end it
    before it ignores them. This process gets them afterwards."""
    resource_tracker.ensure_running()  # it would unblock them when it starts
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
    """One engine process and the socket to it. `died` is done when the process has ended.

    The socket is in a folder that only this user may enter. The folder is removed as soon as both ends are
    connected, so nothing is left however the server ends.
    """

    def __init__(self, config: ServerConfig, make: MakeEngine, rank: int | None = None) -> None:
        self.folder = private_folder()
        address = f"ipc://{self.folder}/engine"
        self.context = zmq.asyncio.Context()
        self.socket = self.context.socket(zmq.PAIR)
        self.socket.set_hwm(0)
        self.socket.linger = 0
        self.socket.bind(address)
        spawn = multiprocessing.get_context("spawn")
        # From the main thread: the kernel's parent-death signal means the thread that started the child.
        self.process: BaseProcess = spawn.Process(
            target=run, args=(config, address, os.getpid(), make, rank), name="nextn-engine"
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

    async def receive(self) -> FromEngine:
        message: FromEngine = decode_from_engine(await self.socket.recv())
        return message

    async def ready(self) -> Ready:
        """The engine's first message. Raises StartupError."""
        try:
            return await self._ready()
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    async def _ready(self) -> Ready:
        first = asyncio.ensure_future(self.receive())
        either: list[asyncio.Future[Any]] = [first, self.died]
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not first.done():
            await asyncio.wait({first}, timeout=LAST_WORDS_SECONDS)
        if not first.done():
            first.cancel()
            raise StartupError(f"the engine process ended while starting ({self.how_it_ended()})", False)
        message = first.result()
        if isinstance(message, Failed):
            raise StartupError(message.message, message.mistake)
        assert isinstance(message, Ready)
        self.listens = True
        return message

    def how_it_ended(self) -> str:
        self.process.join(1)
        return how_it_ended(self.process.exitcode)

    async def stop(self) -> None:
        """Asks the process to end, then kills it and closes the socket. One that still loads is only
        killed."""
        if self.listens and not self.died.done():
            self.socket.send(encode(Stop()))
            await asyncio.wait({self.died}, timeout=STOP_SECONDS)
        self.kill()

    def kill(self) -> None:
        if not self.died.done():
            self._ended()
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.socket.close()
        self.context.term()
        shutil.rmtree(self.folder, ignore_errors=True)


class Supervisor:
    """Keeps an engine behind `client`."""

    def __init__(self, config: ServerConfig, client: EngineClient, make: MakeEngine) -> None:
        self.config, self.client, self.make = config, client, make
        self.handle: EngineHandle | None = None
        self.restarts: collections.deque[float] = collections.deque()  # when, of the last WINDOW_SECONDS

    def launch(self) -> EngineHandle:
        """Starts a process; it is not ready yet."""
        self.handle = EngineHandle(self.config, self.make, self.client.rank)
        return self.handle

    async def keep(self, handle: EngineHandle) -> None:
        """Serves with `handle`, which is ready, and with its successors. Raises StartupError when they die
        too often."""
        logs.dp_rank.set(self.client.rank)
        while True:
            await self._serve(handle)
            delay = FIRST_DELAY
            log.error("the engine process ended (%s); its requests fail", handle.how_it_ended())
            while True:
                handle.kill()
                self._count_restart()
                log.info("the engine is started again in %.1f s", delay)
                await asyncio.sleep(delay)
                delay = min(2 * delay, LONGEST_DELAY)
                handle = self.launch()
                try:
                    ready = await handle.ready()
                except StartupError as e:
                    log.error("the engine does not start again: %s", e)
                    continue
                self.client.attach(ready, handle.socket)
                log.info("the engine is ready again")
                break

    def _count_restart(self) -> None:
        now, most = time.monotonic(), self.config.max_engine_restarts
        while self.restarts and self.restarts[0] < now - WINDOW_SECONDS:
            self.restarts.popleft()
        if len(self.restarts) >= most:
            minutes = WINDOW_SECONDS / 60
            message = f"the engine ended again after {most} restarts in {minutes:.0f} minutes"
            raise StartupError(f"{message} (--max-engine-restarts)", False)
        self.restarts.append(now)
        self.client.metrics.restarts += 1

    async def _serve(self, handle: EngineHandle) -> None:
        """Passes on the engine's messages until it dies. Then every waiting request has got an error."""

        async def pump() -> None:
            while True:
                self.client.receive(await handle.receive())

        pumping = asyncio.ensure_future(pump())
        watching = asyncio.ensure_future(self._watchdog(handle))
        try:
            await asyncio.wait({pumping, handle.died}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.client.detach("the engine died while it worked on this request")
            pumping.cancel()
            watching.cancel()
        if pumping.done() and not pumping.cancelled():
            pumping.result()  # raises what went wrong

    async def _watchdog(self, handle: EngineHandle) -> None:
        """Ends an engine that hangs, that is, has requests and makes no step."""
        seconds = self.config.watchdog_timeout
        while True:
            await asyncio.sleep(seconds / 4)
            if self.client.silent_for() > seconds:
                log.error("the engine has made no step for %g s (--watchdog-timeout); it is ended", seconds)
                handle.process.kill()
                return

    async def stop(self) -> None:
        if self.handle is not None:
            await self.handle.stop()

    def kill(self) -> None:
        if self.handle is not None:
            self.handle.kill()
