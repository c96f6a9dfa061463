"""Runs replicas of `nextn serve` behind Ray Serve. Each replica is a whole server and gets whole requests.

    pip install 'ray[serve]'        # on every node, in the environment of nextn
    cd examples/deploy
    serve run ray_serve:app replicas=2 cpus=4 options='--model-path /models/mine'
    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "def f("}'

replicas: number of replicas. cpus: CPUs of each replica, and its --threads. options: options of `nextn
serve`. If a replica ends, Serve starts it again, on another node if necessary. Each request goes to the less
loaded of two random replicas; their caches do not matter. A request about one server, for example /metrics or
/flush_cache, reaches only one replica.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping

import httpx
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

from nextn.bench import tied

READY = re.compile(r"nextn is ready on (http://\S+) ")
# Headers that belong to one connection and are not passed on.
OF_A_CONNECTION = {"connection", "date", "host", "keep-alive", "server", "transfer-encoding"}
STOP_SECONDS = 40  # more than --shutdown-timeout


@serve.deployment(max_ongoing_requests=1024, graceful_shutdown_timeout_s=STOP_SECONDS + 5)
class Server:
    """One server, and a client of it. If the server is full, it refuses requests itself."""

    def __init__(self, options: list[str]) -> None:
        """Starts the server and waits until it is ready. It ends when this process ends, even if this process
        is killed. Raises RuntimeError if it ends first."""
        command = [sys.executable, "-m", "nextn", "serve", "--port", "0", *options]
        self.process = subprocess.Popen(
            [sys.executable, tied.__file__, str(os.getpid()), *command], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        found = next(filter(None, map(READY.search, self.process.stdout)), None)
        if found is None:
            raise RuntimeError(f"nextn serve ended with {self.process.wait()}; its log has the reason")
        unlimited = httpx.Limits(max_connections=None)
        self.client = httpx.AsyncClient(base_url=found[1], timeout=None, limits=unlimited, trust_env=False)

    async def __call__(self, request: Request) -> StreamingResponse:
        """Passes a request on. If the client disconnects, its request in the server ends too."""
        answer = await self.client.send(
            self.client.build_request(
                request.method,
                httpx.URL(path=request.url.path, query=request.url.query.encode()),
                headers=passed_on(request.headers),
                content=await request.body(),
            ),
            stream=True,
        )
        return StreamingResponse(chunks(answer), answer.status_code, passed_on(answer.headers))

    def check_health(self) -> None:
        """Raises RuntimeError if the server has ended. The server itself restarts a dead engine; when it
        gives up, it ends."""
        if self.process.poll() is not None:
            raise RuntimeError(f"nextn serve has ended with {self.process.returncode}")

    def __del__(self) -> None:
        self.process.terminate()
        self.process.wait(STOP_SECONDS)


async def chunks(answer: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for chunk in answer.aiter_raw():
            yield chunk
    finally:
        await answer.aclose()


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in OF_A_CONNECTION}


def app(args: dict[str, str]) -> serve.Application:
    cpus = int(args.get("cpus", 1))
    options = ["--threads", str(cpus), *shlex.split(args.get("options", ""))]
    return Server.options(
        num_replicas=int(args.get("replicas", 1)), ray_actor_options={"num_cpus": cpus}
    ).bind(options)
