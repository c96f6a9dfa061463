"""The routes."""

from __future__ import annotations

import dataclasses

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import nextn
from nextn.config import model_folder
from nextn.server.auth import ApiKey
from nextn.server.body import parse
from nextn.server.errors import ApiError
from nextn.server.http_metrics import CountResponses
from nextn.server.internal_state import in_force, set_internal_state
from nextn.server.native import NativeReply
from nextn.server.native_protocol import GenerateRequest
from nextn.server.openai import Reply
from nextn.server.protocol import ChatRequest, CommonRequest, CompletionRequest
from nextn.server.request_id import RequestId, request_id
from nextn.server.responses import Model, ModelList
from nextn.server.service import Service
from nextn.server.sse import ClientGone, EventStream, unless_gone
from nextn.server.static import add_page
from nextn.server.tracing import TraceParent


def json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def make_app(service: Service) -> FastAPI:
    app = FastAPI(title="nextn", version=nextn.__version__, openapi_url=None)
    if service.config.key is not None:
        app.add_middleware(ApiKey, key=service.config.key)
    if service.config.otlp_traces_endpoint is not None:
        app.add_middleware(TraceParent)
    app.add_middleware(CountResponses, metrics=service.metrics)
    app.add_middleware(RequestId)  # the last is the outermost
    add_error_handlers(app)
    add_generation(app, service)
    add_control(app, service)
    add_figures(app, service)
    add_page(app)
    return app


def add_generation(app: FastAPI, service: Service) -> None:
    name, most = service.config.model_name, service.config.max_request_bytes

    @app.post("/v1/completions")
    async def completions(request: Request) -> Response:
        body = parse(await read_body(request, most), CompletionRequest)
        return await answer(request, body, Reply(body, await service.completion(body), name))

    @app.post("/v1/chat/completions")
    async def chat_completions(request: Request) -> Response:
        body = parse(await read_body(request, most), ChatRequest)
        return await answer(request, body, Reply(body, await service.chat(body), name))

    @app.post("/generate")
    async def generate(request: Request) -> Response:
        body = parse(await read_body(request, most), GenerateRequest)
        generation, asked = await service.generate(body)
        return await answer(request, body, NativeReply(body, asked, generation))

    async def answer(
        request: Request, body: CommonRequest | GenerateRequest, reply: Reply | NativeReply
    ) -> Response:
        try:
            if body.stream:
                return await unless_gone(request.receive, EventStream(reply.chunks()).start())
            whole = await unless_gone(request.receive, reply.whole())
        except ClientGone:
            return Response(status_code=499)
        return Response(whole, media_type="application/json")


def add_control(app: FastAPI, service: Service) -> None:
    @app.post("/set_internal_state")
    async def internal_state(request: Request) -> Response:
        return json(
            await set_internal_state(service, await read_body(request, service.config.max_request_bytes))
        )


def add_figures(app: FastAPI, service: Service) -> None:
    config = service.config

    @app.get("/health")
    @app.get("/readyz")
    async def health() -> Response:
        return json({"status": service.status}, 200 if service.status == "ok" else 503)

    @app.get("/livez")
    async def live() -> Response:
        """The process answers. Whether it can serve is /readyz; what a dead engine needs it does itself."""
        return json({"status": service.status})

    @app.get("/v1/models")
    async def models() -> Response:
        ready = service.engine.ready
        length = ready.context_length if ready is not None else config.context_length
        return json(ModelList([Model(config.model_name, service.created, length)]))

    @app.get("/version")
    async def version() -> Response:
        return json({"version": nextn.__version__})

    @app.get("/server_info")
    @app.get("/get_server_info")
    async def server_info() -> Response:
        metrics, ready = service.metrics, service.engine.ready
        total = metrics.totals().spec
        state = {
            "avg_spec_accept_length": total.accept_length,
            "spec_accept_rates": total.accept_rates,
            "last_accept_length": metrics.interval.spec.accept_length,
            "last_gen_throughput": metrics.interval.throughput,
            **in_force(service),
        }
        return json(
            {
                **{**dataclasses.asdict(config), "api_key": None},
                "version": nextn.__version__,
                "status": service.status,
                "served_model_name": config.model_name,
                "engine": ready.startup if ready is not None else None,
                "internal_states": [state],
            }
        )

    @app.get("/model_info")
    @app.get("/get_model_info")
    async def model_info() -> Response:
        """Where bench_serving finds the tokenizer."""
        folder = str(model_folder(config.model_path))
        return json({"model_path": folder, "tokenizer_path": folder, "is_generation": True})

    if config.enable_metrics:

        @app.get("/metrics")
        async def metrics() -> Response:
            return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return Response(error.body, error.status, error.headers, "application/json")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        return await api_error(request, ApiError(error.status_code, message, headers=headers))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # in the middle of its body; nobody is told

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        # Starlette sends this outside of all middleware.
        headers = {"X-Request-ID": request_id.get()}
        message = "internal error; see the server's log"
        return await api_error(request, ApiError(500, message, "server_error", headers=headers))


async def read_body(request: Request, most: int) -> bytes:
    """Raises ApiError 413 as soon as it is known to be longer than `most` bytes."""
    too_long = ApiError(413, f"the body is longer than {most} bytes (--max-request-bytes)")
    if int(request.headers.get("content-length", 0)) > most:
        raise too_long
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > most:
            raise too_long
    return bytes(body)
