"""The server's FastAPI application: its routes, middleware and error handlers."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match, Route

import nextn
from nextn.server.answers.native import NativeAnswer, NativeReply
from nextn.server.answers.openai import Reply
from nextn.server.answers.service import Service
from nextn.server.http import info
from nextn.server.http.auth import ApiKey
from nextn.server.http.bodies import Bodies
from nextn.server.http.control import (
    AbortRequest,
    SetInternalState,
    abort_request,
    check_engine,
    flush_cache,
    set_internal_state,
)
from nextn.server.http.expert_record import Dumped, dump_experts, record_experts
from nextn.server.http.middleware import CountResponses, RequestId, TraceParent
from nextn.server.http.openapi import Document
from nextn.server.http.profile import add_profile
from nextn.server.http.sse import ClientGone, EarlyAnswer, EventStream, WholeAnswer, one_chunk, unless_gone
from nextn.server.http.static import add_page
from nextn.server.http.tokens import (
    DetokenizeRequest,
    Text,
    TokenizeRequest,
    Tokens,
    detokenize,
    tokenize,
    tokenizer_info,
)
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.profiler import Profiler
from nextn.server.protocol.context import request_id
from nextn.server.protocol.errors import ApiError, prompt_in
from nextn.server.protocol.native import GenerateRequest
from nextn.server.protocol.openai import ChatRequest, CommonRequest, CompletionRequest
from nextn.server.protocol.responses import Answer, ChatChoice, CompletionChoice, Model, ModelList


def json(content: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(content), status, media_type="application/json")


def make_app(service: Service, metrics: Metrics, profiler: Profiler | None = None) -> FastAPI:
    profiler = profiler or Profiler(service.engine, service.config.model_name)
    app = FastAPI(title="nextn", version=nextn.__version__, docs_url=None, redoc_url=None)
    if service.config.key is not None:
        app.add_middleware(ApiKey, key=service.config.key)
    if service.config.otlp_traces_endpoint is not None:
        app.add_middleware(TraceParent)
    app.add_middleware(CountResponses, metrics=metrics)
    app.add_middleware(RequestId, requests=profiler.requests)  # added last, so it is the outermost
    add_error_handlers(app)
    document, bodies = Document(), Bodies(service)
    add_generation(app, service, bodies, document)
    add_control(app, service, bodies, document)
    add_profile(app, service, bodies, document, profiler)
    add_info(app, service, metrics, document)
    add_page(app)
    document.serve(app)
    return app


def add_generation(app: FastAPI, service: Service, bodies: Bodies, document: Document) -> None:
    route = document.route
    name = service.config.model_name

    @app.post(
        "/v1/completions",
        **route("Complete a text", CompletionRequest, Answer[CompletionChoice], stream=True),
    )
    async def completions(request: Request) -> Response:
        body = await bodies.read(request, CompletionRequest)
        return await answer(request, body, Reply(body, await service.completion(body), name))

    @app.post("/v1/chat/completions", **route("Answer a chat", ChatRequest, Answer[ChatChoice], stream=True))
    async def chat_completions(request: Request) -> Response:
        body = await bodies.read(request, ChatRequest)
        with prompt_in(body.prompt_field):
            generation, answer_format = await service.chat(body)
        return await answer(request, body, Reply(body, generation, name, answer_format))

    described = route(
        "Complete texts or token ids", GenerateRequest, NativeAnswer | list[NativeAnswer], stream=True
    )

    @app.put("/generate", **described)
    @app.post("/generate", **described)
    async def generate(request: Request) -> Response:
        body = await bodies.read(request, GenerateRequest)
        with prompt_in(body.prompt_field):
            generation, asked = await service.generate(body)
        return await answer(request, body, NativeReply(body, asked, generation))

    async def answer(
        request: Request, body: CommonRequest | GenerateRequest, reply: Reply | NativeReply
    ) -> Response:
        try:
            if body.prefill_only and reply.generation.transfer_params is None:  # from SGLang's gateways
                chunks = reply.chunks() if body.stream else one_chunk(reply.whole())
                return await unless_gone(request.receive, EarlyAnswer(chunks, body.stream).start())
            if body.stream:
                return await unless_gone(request.receive, EventStream(reply.chunks()).start())
            whole = await unless_gone(request.receive, reply.whole())
        except ClientGone:
            return Response(status_code=499)
        return WholeAnswer(whole)


def add_control(app: FastAPI, service: Service, bodies: Bodies, document: Document) -> None:
    route = document.route
    described = route("Change defaults for later requests", SetInternalState, list[bool])

    @app.put("/set_internal_state", **described)
    @app.post("/set_internal_state", **described)
    async def internal_state(request: Request) -> Response:
        body = await bodies.read(request, SetInternalState)
        return json(await set_internal_state(service, body))

    @app.post("/abort_request", **route("Abort requests", AbortRequest))
    async def abort(request: Request) -> Response:
        abort_request(service, await bodies.read(request, AbortRequest))
        return Response()

    @app.get("/flush_cache", **route("Empty the prefix cache", text=True))
    @app.post("/flush_cache", **route("Empty the prefix cache", text=True))
    async def flush() -> Response:
        if await flush_cache(service):
            return Response("Cache flushed.\n", media_type="text/plain")
        message = "the cache was not flushed: requests are running or waiting"
        raise ApiError(400, message, code="engine_busy")

    add_expert_record(app, service, document)

    @app.post("/v1/tokenize", **route("Text or messages to token ids", TokenizeRequest, Tokens))
    @app.post("/tokenize", **route("Text or messages to token ids", TokenizeRequest, Tokens))
    async def to_tokens(request: Request) -> Response:
        body = await bodies.read(request, TokenizeRequest)
        with prompt_in(body.prompt_field):
            return json(await tokenize(service, body))

    @app.get("/tokenizer_info", **route("The tokenizer's config and chat template", answer=dict[str, Any]))
    async def tokenizer() -> Response:
        return json(await tokenizer_info(service))

    @app.post("/v1/detokenize", **route("Token ids to text", DetokenizeRequest, Text))
    @app.post("/detokenize", **route("Token ids to text", DetokenizeRequest, Text))
    async def to_text(request: Request) -> Response:
        return json(await detokenize(service, await bodies.read(request, DetokenizeRequest)))


def add_expert_record(app: FastAPI, service: Service, document: Document) -> None:
    route, record = document.route, "expert_distribution_record"

    @app.get(f"/start_{record}", **route("Start counting the rows of each expert", text=True))
    @app.post(f"/start_{record}", **route("Start counting the rows of each expert", text=True))
    async def start() -> Response:
        await record_experts(service, "start")
        return Response("Start recording expert distribution.\n", media_type="text/plain")

    @app.get(f"/stop_{record}", **route("Stop counting the rows of each expert", text=True))
    @app.post(f"/stop_{record}", **route("Stop counting the rows of each expert", text=True))
    async def stop() -> Response:
        await record_experts(service, "stop")
        return Response("Stop recording expert distribution.\n", media_type="text/plain")

    @app.get(f"/dump_{record}", **route("Write the rows of each expert to a file", answer=Dumped))
    @app.post(f"/dump_{record}", **route("Write the rows of each expert to a file", answer=Dumped))
    async def dump() -> Response:
        return json(await dump_experts(service))


def add_info(app: FastAPI, service: Service, prometheus: Metrics, document: Document) -> None:
    route = document.route
    facts = dict[str, Any]

    @app.get("/health", **route("Is the engine running?", answer=facts))
    @app.get("/readyz", **route("Is the engine running?", answer=facts))
    async def health() -> Response:
        return json(service.health, 200 if service.status == "ok" else 503)

    @app.get("/livez", **route("Is the server process running?", answer=facts))
    async def live() -> Response:
        """Answers 200 as long as the server process runs. /readyz says whether it can serve. The server
        restarts a dead engine itself."""
        return json(service.health)

    @app.get("/health_generate", **route("Does the engine respond?", answer=facts))
    async def health_generate() -> Response:
        await check_engine(service)
        return json({"status": "ok"})

    @app.get("/v1/models", **route("The served model", answer=ModelList))
    async def models() -> Response:
        return json(ModelList([info.model_card(service)]))

    @app.get("/v1/models/{model:path}", **route("The model of this name", answer=Model))
    async def one_model(model: str) -> Response:
        service.check_model(model)
        return json(info.model_card(service))

    @app.get("/version", **route("The server's version", answer=facts))
    async def version() -> Response:
        if service.config.disaggregation_mode != "null":
            # The gateway smg takes a server with /version for a vLLM server, and then hands over no request.
            raise ApiError(404, "a prefill or decode server has no /version; see /server_info")
        return json({"version": nextn.__version__})

    @app.get("/server_info", **route("Options and state", answer=facts))
    @app.get("/get_server_info", **route("Options and state", answer=facts))
    async def server_info() -> Response:
        return json(info.server_info(service))

    @app.get("/model_info", **route("The model's path", answer=facts))
    @app.get("/get_model_info", **route("The model's path", answer=facts))
    async def model_info() -> Response:
        return json(info.model_info(service))

    @app.get("/v1/loads", **route("The load of each engine", answer=info.Loads))
    async def loads(request: Request) -> Response:
        form = request.query_params.get("format", "json")
        if form != "json":
            raise ApiError(
                400, f"format is {form!r}; it must be json, or use /metrics instead", param="format"
            )
        include, rank = request.query_params.getlist("include"), request.query_params.get("dp_rank")
        return json(info.loads(service, include, rank))

    @app.get("/get_load", **route("The load in short form", answer=list[info.OldLoad]))
    async def old_loads() -> Response:
        return json(info.old_loads(service))

    if service.config.enable_metrics:

        @app.get("/metrics", **route("Metrics for Prometheus", text=True))
        async def metrics() -> Response:
            return Response(prometheus.render(), headers={"content-type": CONTENT_TYPE_LATEST})


def add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return Response(error.body, error.status, error.headers, "application/json")

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail}"
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = allowed(app, request)
        return await api_error(request, ApiError(error.status_code, message, headers=headers))

    @app.exception_handler(ClientDisconnect)
    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return Response(status_code=499)  # the client left while it sent its body

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:
        # Starlette sends this answer outside all middleware, so `RequestId` does not add its header.
        headers = {"X-Request-ID": request_id.get()}
        message = "internal error; see the server's log"
        return await api_error(request, ApiError(500, message, "server_error", headers=headers))


def allowed(app: FastAPI, request: Request) -> str:
    """All methods of a path. Starlette names only those of the path's first route."""
    routes = [route for route in app.routes if isinstance(route, Route)]
    here = [route for route in routes if route.matches(request.scope)[0] != Match.NONE]
    return ", ".join(sorted({method for route in here for method in route.methods or ()}))
