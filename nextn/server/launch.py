"""Starts a server from its configuration, and ends it.

One asyncio loop in this process serves HTTP. Each engine runs in a child process. After the first Ctrl-C or
SIGTERM, new requests get 503, and running ones have --shutdown-timeout seconds to finish. The second signal
ends everything at once. The exit code is 0 after SIGTERM, and 130 after Ctrl-C, as for each command. It is 1
if the server cannot start, or cannot continue.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import uvicorn
import uvloop
from starlette.types import ASGIApp

import nextn
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
from nextn.server.process import logs
from nextn.server.process.dispatch import Dispatch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.server.process.engine_process import MakeEngine, make_engine
from nextn.server.process.engines import Engines
from nextn.server.process.memory import trim_periodically
from nextn.server.process.messages import Ready
from nextn.server.process.replicas import Replicas
from nextn.server.process.rooms import Rooms
from nextn.server.process.supervisor import StartupError
from nextn.server.process.supervisors import Handles, Supervisors
from nextn.server.protocol.errors import shut_down
from nextn.server_config import ServerConfig
from nextn.tokenizer.tokenizer import Tokenizer
from nextn.trace_file import check_folder

log = logging.getLogger("nextn.server")

SEND_SECONDS = 2  # minimum time for clients to read answers when the server ends


def serve(config: ServerConfig, make: MakeEngine = make_engine) -> int:
    """Serves until a signal ends it. Returns the exit code. make: builds the engine, in the engine's process.

    Raises StartupError if the address is taken or the engine cannot be built.
    """
    config.check()
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


class Server(uvicorn.Server):
    """uvicorn's server without its signal handlers, because `Launch` has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


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
        try:
            model = model_folder(self.config.model_path)
            tokenizer = Tokenizer.from_folder(model, self.config.chat_template)
            endpoint = self.config.otlp_traces_endpoint
            tracing = None if endpoint is None else otlp(self.config.model_name, endpoint)
        except ValueError as e:
            raise StartupError(str(e)) from e
        level = self.config.log_requests_level if self.config.log_requests else None
        metrics = Metrics(self.engines)
        watch = Watch(metrics, RequestLog(level, tokenizer.decode), tracing)
        service = Service(self.config, self.engines, tokenizer, watch)
        profiler = Profiler(self.engines, self.config.model_name)
        server = server_of(make_app(service, metrics, profiler))
        serving = asyncio.create_task(server.serve(sockets=[self.listener]))
        side = SideServer() if self.bootstrap is None else self._serve_bootstrap(service, self.bootstrap)
        stopping = asyncio.create_task(self.stopping.wait())
        starting = asyncio.create_task(self.supervisors.ready(handles))
        cutting = asyncio.create_task(cut_stalled(server, self.config.client_timeout))
        trimming = asyncio.create_task(trim_periodically())
        supervising: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({starting, stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not stopping.done() and not serving.done():
                readies = starting.result()
                supervising = asyncio.create_task(self.supervisors.run(handles))
                profile_first_steps(profiler, self.config)
                gc.freeze()  # otherwise each collection visits modules and routes, and takes 30 ms
                announce(self.config, readies, self.listener, self.bootstrap)
                await asyncio.wait({stopping, serving, supervising}, return_when=asyncio.FIRST_COMPLETED)
            if supervising is not None and supervising.done():
                supervising.result()  # raises StartupError: `run` never returns
            left = await self._drain(service)
            await profiler.close()
            server.config.timeout_graceful_shutdown = max(SEND_SECONDS, left)
        finally:
            for task in (supervising, starting, stopping, cutting, trimming):
                if task is not None:
                    task.cancel()
            server.should_exit = True
            await serving
            await side.end()
            if tracing is not None:
                tracing.close()
        return self.exit_code

    def _serve_bootstrap(self, service: Service, listener: socket.socket) -> SideServer:
        rooms = self.engines.ranks[0].rooms
        assert rooms is not None
        service.bootstrap = reachable(listener)
        app = bootstrap_app(self.config, self.engines, rooms, self.listener.getsockname()[1])
        return SideServer(server_of(app), listener, self.config.client_timeout)

    async def _drain(self, service: Service) -> int:
        """Lets requests finish. Returns the whole seconds that remain for clients to read answers."""
        service.draining = True
        log.info(
            "shutting down: running requests (%d) have %g seconds to finish; Ctrl-C again ends at once",
            self.engines.active,
            self.config.shutdown_timeout,
        )
        deadline = asyncio.get_running_loop().time() + self.config.shutdown_timeout
        while self._busy and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.02)
        self.engines.fail_all(shut_down())
        return int(deadline - asyncio.get_running_loop().time())

    @property
    def _busy(self) -> bool:
        """Whether requests run, or decode servers still fetch pages."""
        moving = (client.metrics.stats.transfer for client in self.engines.ranks)
        return self.engines.active > 0 or any(stats is not None and stats.active for stats in moving)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.stopping.is_set():
            self.supervisors.kill()
            os._exit(130)
        self.exit_code = 130 if number == signal.SIGINT else 0
        self.stopping.set()


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


def profile_first_steps(profiler: Profiler, config: ServerConfig) -> None:
    """Starts a profile if --profile-steps is set and no client has started one already."""
    if config.profile_steps and config.profile_dir is not None and not profiler.running:
        profiler.start(Profile(Path(config.profile_dir).absolute(), steps=config.profile_steps))


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


def raise_file_limit() -> None:
    """Raises the limit of open files. Each connection is one, and the usual soft limit is 1024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS refuses an infinite limit
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def listen(host: str, port: int, option: str = "--port") -> socket.socket:
    """A listening socket. option: the option that sets the port, for errors. Raises StartupError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with contextlib.ExitStack() as undo:
            listener = undo.enter_context(socket.socket(family, kind, protocol))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(2048)
            undo.pop_all()
    except (OSError, UnicodeError) as e:
        place, fix = f"--host {host}", "it must be an address of this machine; 0.0.0.0 stands for all of them"
        if isinstance(e, OSError) and e.errno in (errno.EADDRINUSE, errno.EACCES):
            place, fix = f"{host}:{port}", f"choose another {option}"
        raise StartupError(f"cannot listen on {place}: {getattr(e, 'strerror', e)}; {fix}") from e
    return listener


def announce(
    config: ServerConfig,
    readies: Sequence[Ready],
    listener: socket.socket,
    bootstrap: socket.socket | None = None,
) -> None:
    """Prints the engines' startup facts, and then the line with the server's address."""
    print(f"nextn {nextn.__version__}")
    host = f"[{config.host}]" if ":" in config.host else config.host
    said = merge_startups([ready.startup for ready in readies], config.attention_dp > 1)
    if config.disaggregation_mode != "null":
        said["disaggregation"] = disaggregation_line(config, host, bootstrap)
    for line in startup_lines(said):
        print(f"  {line}")
    num_steps = readies[0].num_steps
    drafts = "auto" if num_steps is None else num_steps
    drafter = " and ".join(["MTP"] * config.speculation.mtp + ["n-gram"] * config.speculation.ngrams)
    mtp = f"{drafter} {drafts} drafts" if drafts else "no MTP"
    url = f"http://{host}:{listener.getsockname()[1]}"
    several = "groups" if config.attention_dp > 1 else "replicas"
    engines = f" on {config.dp_size} {several}" if config.dp_size > 1 else ""
    print(f"nextn is ready on {url} (model {config.model_name}, {mtp}{engines})", flush=True)


def disaggregation_line(config: ServerConfig, host: str, bootstrap: socket.socket | None) -> str:
    backend = f"transfer backend {config.disaggregation_transfer_backend}"
    if bootstrap is None:
        return f"{config.disaggregation_mode}, {backend}, fallback {config.disaggregation_fallback}"
    at = f"{host}:{bootstrap.getsockname()[1]}"
    return f"{config.disaggregation_mode}, {backend}, bootstrap port at {at}"


def merge_startups(startups: Sequence[Mapping[str, object]], groups: bool = False) -> dict[str, object]:
    """Merges the startup facts of several replicas or groups. If their times differ, takes the longest. If
    other facts differ, lists all of them."""
    first = startups[0]
    if len(startups) == 1:
        return dict(first)
    said: dict[str, object] = {"replicas": f"{len(startups)}, each with:"}
    if groups:
        said = {"groups": f"{len(startups)} (DP attention), each with:"}
    for name in first:
        values = [startup.get(name) for startup in startups]
        if name.endswith("_seconds"):
            said[name] = max(seconds for seconds in values if isinstance(seconds, float))
        else:
            alike = all(value == values[0] for value in values)
            said[name] = values[0] if alike else " / ".join(map(str, values))
    return said


def startup_lines(startup: Mapping[str, object]) -> Iterator[str]:
    width = max(map(len, startup), default=0)
    for name, value in startup.items():
        words = [word for word in name.split("_") if word not in ("bytes", "seconds")]
        shown = str(value)
        if "bytes" in name and isinstance(value, int):
            shown = f"{value / 2**20:.1f} MiB"
        elif "seconds" in name and isinstance(value, float):
            shown = f"{value:.1f} s"
        elif name == "ranks":
            shown += ", each with:"
        yield f"{' '.join(words):{width}}  {shown}"
