"""Replicas of `nextn serve` behind Ray Serve: each is a whole server, to which Serve passes requests on.

    pip install 'ray[serve]'        # on every node, in the environment of nextn
    cd examples/deploy
    serve run ray_serve:app replicas=2 cpus=4 options='--model-path /models/mine'
    curl http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' -d '{"prompt": "def f("}'

replicas: how many. cpus: of each; it is also its --threads. options: of `nextn serve`. Serve starts a replica
again that ends, on another node if need be. Each request goes to the less loaded of two random replicas,
whatever is in their caches. What concerns one server, such as /metrics or /flush_cache, reaches one of them.
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
OF_A_CONNECTION = {"connection", "date", "host", "keep-alive", "server", "transfer-encoding"}  # headers
STOP_SECONDS = 40  # more than --shutdown-timeout


@serve.deployment(max_ongoing_requests=1024, graceful_shutdown_timeout_s=STOP_SECONDS + 5)
class Server:
    """One server, and its client. The server itself refuses what it has no room for."""

    def __init__(self, options: list[str]) -> None:
        """Waits until the server is ready. It ends with this process, however that ends."""
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
        """A client that goes away ends its request in the server, too."""
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
        """A server starts a dead engine again itself. When it gives up, it ends."""
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
