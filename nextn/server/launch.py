"""Starts a server from its configuration, and ends it.

One asyncio loop in this process serves HTTP. Each engine runs in a child process. After the first Ctrl-C or
SIGTERM, new requests get 503, and running ones have --shutdown-timeout seconds to finish. The second signal
ends everything at once. The exit code is 0 after SIGTERM, and 130 after Ctrl-C, as for each command. It is 1
if the server cannot start, or cannot continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path

import uvloop

from nextn.config import model_folder
from nextn.server.announce import announce
from nextn.server.listen import listen, raise_file_limit
from nextn.server.process import logs
from nextn.server.process.dispatch import Dispatch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.server.process.engine_process import MakeEngine, make_engine
from nextn.server.process.engines import Engines
from nextn.server.process.replicas import Replicas
from nextn.server.process.rooms import Rooms
from nextn.server.process.supervisor import StartupError
from nextn.server.process.supervisors import Handles, Supervisors
from nextn.server_config import ServerConfig
from nextn.tokenizer.folder import existing
from nextn.trace_file import check_folder


def serve(config: ServerConfig, make: MakeEngine = make_engine) -> int:
    """Serves until a signal ends it. Returns the exit code. make: builds the engine, in the engine's process.

    Raises StartupError if the address is taken or the engine cannot be built.
    """
    config.check()
    try:
        existing(model_folder(config.model_path))
    except ValueError as e:
        raise StartupError(str(e)) from e
    if config.profile_dir is not None:
        try:
            check_folder(Path(config.profile_dir))
        except OSError as e:
            message = f"--profile-dir {config.profile_dir}: no file can be written there: {e.strerror}"
            raise StartupError(message) from e
    logs.configure(config.log_level, config.log_format)
    raise_file_limit()
    with contextlib.ExitStack() as open_sockets:
        listener = open_sockets.enter_context(listen(config.host, config.port))
        bootstrap: socket.socket | None = None
        if config.disaggregation_mode == "prefill":
            port, option = config.disaggregation_bootstrap_port, "--disaggregation-bootstrap-port"
            bootstrap = open_sockets.enter_context(listen(config.host, port, option))
        return uvloop.run(Launch(config, listener, make, bootstrap).run())


class Launch:
    """One run of the server. bootstrap: a prefill server's listening socket for decode servers."""

    def __init__(
        self,
        config: ServerConfig,
        listener: socket.socket,
        make: MakeEngine,
        bootstrap: socket.socket | None = None,
    ) -> None:
        self.config, self.listener, self.bootstrap = config, listener, bootstrap
        self.engines = make_engines(config)
        self.supervisors = Supervisors(config, self.engines.ranks, make)
        self.stopping = asyncio.Event()
        self.exit_code = 0

    async def run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal, number)
        handles = self.supervisors.launch()  # engines load while this process prepares the rest
        try:
            return await self._run(handles)
        finally:
            await self.supervisors.stop()

    async def _run(self, handles: Sequence[Handles]) -> int:
        from nextn.server.web import Web  # takes a second, in which the engines load

        web = Web(self.config, self.engines, self.listener, self.bootstrap)
        stopping = asyncio.create_task(self.stopping.wait())
        starting = asyncio.create_task(self.supervisors.ready(handles))
        supervising: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({starting, stopping, web.serving}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done() and not web.serving.done():
                readies = starting.result()
                supervising = asyncio.create_task(self.supervisors.run(handles))
                web.profile_first_steps()
                gc.freeze()  # otherwise each collection visits modules and routes, and takes 30 ms
                announce(self.config, readies, self.listener, self.bootstrap)
                await asyncio.wait({stopping, web.serving, supervising}, return_when=asyncio.FIRST_COMPLETED)
            if supervising is not None and supervising.done():
                supervising.result()  # raises StartupError: `run` never returns
            await web.drain()
        finally:
            for task in (supervising, starting, stopping):
                if task is not None:
                    task.cancel()
            await web.end()
        return self.exit_code

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stopping.is_set():
            self.supervisors.kill()
            os._exit(130)
        self.exit_code = 130 if number == signal.SIGINT else 0
        self.stopping.set()


def make_engines(config: ServerConfig) -> Engines:
    """The clients of the engine processes, which do not run yet."""
    rooms = Rooms(2 * config.disaggregation_timeout) if config.disaggregation_mode == "prefill" else None
    ranks = [
        EngineClient(
            EngineMetrics(config.decode_log_interval),
            config.request_timeout,
            rank=None if config.dp_size == 1 else rank,
            rooms=rooms,
        )
        for rank in range(config.dp_size)
    ]
    if config.dp_size == 1:
        return ranks[0]
    if config.attention_dp > 1:
        for client in ranks:
            client.partners = ranks
    dispatch = Dispatch(ranks, config.load_balance_method, cached=not config.disable_radix_cache)
    return Replicas(ranks, dispatch, config.request_timeout)
