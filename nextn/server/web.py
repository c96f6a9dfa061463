"""The HTTP side of a server: the app with its tokenizer and metrics, and uvicorn, which serves it.

Importing this takes longer than the rest of the server, so `nextn.server.launch` does it while engines load.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from nextn.config import model_folder
from nextn.server.answers.service import Service
from nextn.server.http.app import make_app
from nextn.server.http.bootstrap import bootstrap_app, reachable
from nextn.server.http.connection import Connection, cut_stalled
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.profiler import Profile, Profiler
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.tracing import otlp
from nextn.server.monitoring.watch import Watch
from nextn.server.process.engines import Engines
from nextn.server.process.memory import trim_periodically
from nextn.server.process.supervisor import StartupError
from nextn.server.protocol.errors import shut_down
from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer

log = logging.getLogger("nextn.server")

SEND_SECONDS = 2  # minimum time for clients to read answers when the server ends


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, because `Launch` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class Web:
    """Serves from the moment it is made until `end`. `serving` is done if the server ends by itself."""

    def __init__(
        self, config: ServerConfig, engines: Engines, listener: socket.socket, bootstrap: socket.socket | None
    ) -> None:
        """bootstrap: a prefill server's listening socket for decode servers. Raises StartupError."""
        self.config, self.engines = config, engines
        try:
            model = model_folder(config.model_path)
            tokenizer = Tokenizer.from_folder(model, config.chat_template)
            endpoint = config.otlp_traces_endpoint
            self._tracing = None if endpoint is None else otlp(config.model_name, endpoint)
        except ValueError as e:
            raise StartupError(str(e)) from e
        level = config.log_requests_level if config.log_requests else None
        metrics = Metrics(engines)
        watch = Watch(metrics, RequestLog(level, tokenizer.decode), self._tracing)
        self.service = Service(config, engines, tokenizer, watch)
        self.profiler = Profiler(engines, config.model_name)
        self._server = server_of(make_app(self.service, metrics, self.profiler))
        self.serving = asyncio.create_task(self._server.serve(sockets=[listener]))
        self._side = SideServer() if bootstrap is None else self._serve_bootstrap(listener, bootstrap)
        self._tasks = [
            asyncio.create_task(cut_stalled(self._server, config.client_timeout)),
            asyncio.create_task(trim_periodically()),
        ]

    def _serve_bootstrap(self, listener: socket.socket, bootstrap: socket.socket) -> SideServer:
        rooms = self.engines.ranks[0].rooms
        assert rooms is not None
        self.service.bootstrap = reachable(bootstrap)
        app = bootstrap_app(self.config, self.engines, rooms, listener.getsockname()[1])
        return SideServer(server_of(app), bootstrap, self.config.client_timeout)

    def profile_first_steps(self) -> None:
        """Starts a profile if --profile-steps is set and no client has started one already."""
        config = self.config
        if config.profile_steps and config.profile_dir is not None and not self.profiler.running:
            self.profiler.start(Profile(Path(config.profile_dir).absolute(), steps=config.profile_steps))

    async def drain(self) -> None:
        """Lets requests finish. Those that do not within --shutdown-timeout end with an error."""
        self.service.draining = True
        log.info(
            "shutting down: running requests (%d) have %g seconds to finish; Ctrl-C again ends at once",
            self.engines.active,
            self.config.shutdown_timeout,
        )
        deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
        while self._busy and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.engines.fail_all(shut_down())
        left = int(deadline - asyncio.get_running_loop().time())
        await self.profiler.close()
        self._server.config.timeout_graceful_shutdown = max(SEND_SECONDS, left)

    @property
    def _busy(self) -> bool:
        """Whether requests run, or decode servers still fetch pages."""
        moving = (client.metrics.stats.transfer for client in self.engines.ranks)
        return self.engines.active > 0 or any(stats is not None and stats.active for stats in moving)

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._server.should_exit = True
        await self.serving
        await self._side.end()
        if self._tracing is not None:
            self._tracing.close()


class SideServer:
    """A second HTTP server that runs beside the main one until `end`. Without arguments it does nothing."""

    def __init__(
        self, server: Server | None = None, listener: socket.socket | None = None, client_timeout: float = 0
    ) -> None:
        self.server = server
        self.tasks: list[asyncio.Task[None]] = []
        if server is not None and listener is not None:
            self.tasks.append(asyncio.create_task(server.serve(sockets=[listener])))
            self.tasks.append(asyncio.create_task(cut_stalled(server, client_timeout)))

    async def end(self) -> None:
        if self.server is not None:
            self.server.should_exit = True
            serving, cutting = self.tasks
            cutting.cancel()
            await serving


def server_of(app: ASGIApp) -> Server:
    return Server(
        uvicorn.Config(
            app, log_config=None, log_level="warning", access_log=False, lifespan="off",
            timeout_graceful_shutdown=SEND_SECONDS, loop="none", http=Connection, ws="none",
        )
    )  # fmt: skip
