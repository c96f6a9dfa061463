"""Stands for the socket to the engine process, so that whole requests go through the server's application."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import httpx
from fastapi import FastAPI

from nextn.request import Output, TokenLogprob
from nextn.server.answers.service import Service
from nextn.server.http.app import make_app
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.watch import Watch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Add, PromptScores, Ready, StepOutputs, decode_to_engine, requests_of
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats, SpecStats
from nextn.tokenizer.tokenizer import Tokenizer


def logprob_of(token: int) -> TokenLogprob:
    return TokenLogprob(-token / 100, [(token + 1, -0.25), (token, -token / 100)])


class ScriptedSocket:
    """An engine that answers every request with the same tokens, in runs of lengths `cuts`. In a run all
    tokens but the last were drafted, and one more draft was wrong. matched: the token that ends the
    answer."""

    def __init__(
        self, client: EngineClient, tokens: Sequence[int], cuts: Sequence[int], matched: int | None
    ) -> None:
        self.client, self.tokens, self.cuts, self.matched = client, tokens, cuts, matched

    def send(self, data: bytes) -> None:
        message = decode_to_engine(data)
        if isinstance(message, Add):
            for request in requests_of(message):
                asyncio.get_running_loop().create_task(self.play(request))

    async def play(self, request: Any) -> None:
        at, spec, params = 0, SpecStats(), request.params
        while at < len(self.tokens):
            run = self.cuts[spec.verify_steps] if spec.verify_steps < len(self.cuts) else len(self.tokens)
            part = list(self.tokens[at : at + run])
            spec.add(len(part), len(part) - 1, len(part))
            out = Output(request.rid, part, [0] * len(part), cached_tokens=2)
            out.spec, scores = spec.since(SpecStats()), []
            if params.logprobs is not None:
                out.logprobs = [logprob_of(token) for token in part]
            if at == 0 and params.prompt_logprobs is not None:
                scores = [PromptScores.pack([request.rid], [None, *map(logprob_of, request.tokens[1:])])]
            at += run
            if at >= len(self.tokens):
                out.finish_reason = "length" if self.matched is None else "stop"
                out.matched = self.matched
                if params.logprobs is not None and self.matched is not None:
                    out.matched_logprob = logprob_of(self.matched)
            self.client.receive(StepOutputs([out], EngineStats(), 0.1, scores))
            await asyncio.sleep(0)


def app_of(config: ServerConfig, metrics: Metrics, tokenizer: Tokenizer | None = None) -> FastAPI:
    """The server's application, assembled as in `launch`. Without a tokenizer it cannot generate."""
    watch = Watch(metrics, RequestLog(None, str))
    return make_app(Service(config, metrics.engine, tokenizer, watch), metrics)  # type: ignore[arg-type]


def post(
    tokenizer: Tokenizer,
    path: str,
    tokens: Sequence[int] = (),
    cuts: Sequence[int] = (),
    matched: int | None = None,
    config: ServerConfig | None = None,
    **body: Any,
) -> Any:
    """The JSON of an answer or of an error, or a list of the events of a stream. The engine answers with
    `tokens`."""

    async def play() -> Any:
        client = EngineClient()
        socket = ScriptedSocket(client, tokens, cuts, matched)
        client.attach(Ready(tokenizer.vocab_size, 1024, 2, {}, EngineStats()), socket)  # type: ignore[arg-type]
        app = app_of(config or ServerConfig(), Metrics(client), tokenizer)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as http:
            answer = await http.post(path, json=body)
        assert client.active == 0
        if not answer.headers["content-type"].startswith("text/event-stream"):
            return answer.json()
        events = answer.text.removesuffix("data: [DONE]\n\n").removesuffix("\n\n").split("\n\n")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    return asyncio.run(play())
