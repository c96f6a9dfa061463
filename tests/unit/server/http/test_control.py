"""The endpoints that do something to a server or describe it, over ASGI, with an engine that is played."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from support.played_replicas import Played
from support.scripted_socket import app_of
from support.small_tokenizer import CHAT_TEMPLATE, write_small_tokenizer

from nextn.drafting_state import DraftingState, drafting_words
from nextn.request import Output
from nextn.server.http import control, tokens
from nextn.server.http.info import disaggregation_load
from nextn.server.http.openapi import REF
from nextn.server.http.static import PATHS
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import (
    Abort,
    Add,
    Done,
    FlushCache,
    FromEngine,
    StepOutputs,
)
from nextn.server_config import ServerConfig
from nextn.stats import EngineStats, SpecStats, TransferStats
from nextn.tokenizer.tokenizer import Tokenizer

CONFIG = ServerConfig(served_model_name="a/model", max_running_requests=4, tool_call_parser="deepseekv31")


@pytest.fixture
def engine() -> Played:
    return Played(EngineClient())


@pytest.fixture
def metrics(engine: Played) -> Metrics:
    return Metrics(engine.client)


@pytest.fixture
async def http(metrics: Metrics, tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    app = app_of(CONFIG, metrics, Tokenizer.from_folder(write_small_tokenizer(tmp_path)))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        yield client


def step(rid: str, token: int) -> StepOutputs:
    return StepOutputs([Output(rid, [token], [0], spec=SpecStats())], EngineStats(), 0.1)


@pytest.mark.parametrize("by", ["rid", "the answer's id", "its beginning", "all"])
async def test_abort(http: httpx.AsyncClient, engine: Played, metrics: Metrics, by: str) -> None:
    """The request answers with what there is; another goes on."""
    body = {"prompt": "x", "rid": "mine"}
    first = asyncio.ensure_future(http.post("/v1/completions", json=body))
    other = asyncio.ensure_future(http.post("/generate", json={"text": "y", "rid": "yours"}))
    while engine.client.active < 2:
        await asyncio.sleep(0)
    for message in list(engine.received):
        engine.client.receive(step(message.requests[0].rid, 10))
    asked = {"rid": {"its beginning": "mi"}.get(by, "mine"), "abort_all": by == "all"}
    assert (await http.post("/abort_request", json=asked)).status_code == 200
    answer = (await first).json()
    assert answer["id"] == "mine"
    assert (answer["choices"][0]["finish_reason"], answer["usage"]["completion_tokens"]) == ("abort", 1)
    assert engine.client.active == (by != "all")
    if by != "all":
        await http.post("/abort_request", json={"rid": "yours"})
    answer = (await other).json()
    assert answer["meta_info"]["finish_reason"] == {"type": "abort"}
    assert len(answer["output_ids"]) == 1
    assert sum(isinstance(message, Abort) for message in engine.received) >= 2
    assert metrics.aborted == 2


async def test_abort_before_the_prompt_was_scored(http: httpx.AsyncClient, engine: Played) -> None:
    body = {"text": "x", "rid": "mine", "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 1}
    answer = asyncio.ensure_future(http.post("/generate", json=body))
    while not engine.client.active:
        await asyncio.sleep(0)
    await http.post("/abort_request", json={"rid": "mine"})
    meta = (await answer).json()["meta_info"]
    assert meta["finish_reason"] == {"type": "abort"}
    assert meta["input_token_logprobs"] == meta["output_token_logprobs"] == meta["input_top_logprobs"] == []


async def test_abort_nothing(http: httpx.AsyncClient) -> None:
    assert (await http.post("/abort_request", json={"rid": "gone"})).status_code == 200
    refused = await http.post("/abort_request", json={})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "rid")


@pytest.mark.parametrize(("error", "status"), [(None, 200), ("busy", 400)])
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_flush(
    http: httpx.AsyncClient, engine: Played, method: str, error: str | None, status: int
) -> None:
    engine.on = lambda message: Done(message.call, error) if isinstance(message, FlushCache) else None
    assert (await http.request(method, "/flush_cache")).status_code == status
    assert [type(message) for message in engine.received] == [FlushCache]


async def test_health_generate_asks_an_idle_engine(
    http: httpx.AsyncClient, engine: Played, metrics: Metrics
) -> None:
    engine.on = lambda message: step(message.requests[0].rid, 5) if isinstance(message, Add) else None
    assert (await http.get("/health_generate")).status_code == 200
    assert [type(message) for message in engine.received] == [Add, Abort]
    assert engine.client.active == metrics.requests == 0


async def test_health_generate_listens_to_a_busy_engine(http: httpx.AsyncClient, engine: Played) -> None:
    running = asyncio.ensure_future(http.post("/v1/completions", json={"prompt": "x"}))
    while not engine.received:
        await asyncio.sleep(0)
    asking = asyncio.ensure_future(http.get("/health_generate"))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not asking.done()
    engine.client.receive(StepOutputs([], EngineStats(), 0.1))
    assert (await asking).status_code == 200
    assert len(engine.received) == 1
    await http.post("/abort_request", json={"abort_all": True})
    await running


async def test_health_generate_of_a_silent_engine(
    http: httpx.AsyncClient, engine: Played, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "HEALTH_SECONDS", 0.01)
    answer = await http.get("/health_generate")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_unresponsive")
    engine.client.detach("dead")
    assert (await http.get("/health_generate")).json()["error"]["code"] == "engine_unavailable"


async def test_loads(http: httpx.AsyncClient, engine: Played) -> None:
    stats = EngineStats(
        running=2, waiting=1, used_tokens=64, total_tokens=256, prompt_tokens=8, cached_tokens=2
    )
    engine.client.receive(StepOutputs([], stats, 0.1))
    (load,) = (await http.get("/v1/loads")).json()["loads"]
    expected = {
        "dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "num_total_reqs": 3,
        "num_used_tokens": 64, "token_usage": 0.25, "cache_hit_rate": 0.25, "utilization": 0.5,
        "max_running_requests": 4,
    }  # fmt: skip
    assert {name: load[name] for name in expected} == expected
    for query, sections in (
        ("", {"speculative", "queues"}), ("?include=all&dp_rank=0", {"speculative", "queues"}),
        ("?include=core,spec", {"speculative"}), ("?include=memory&include=queues", {"queues"}),
        ("?include=core", set()),
    ):  # fmt: skip
        (load,) = (await http.get("/v1/loads" + query)).json()["loads"]
        assert load.keys() & {"speculative", "queues"} == sections
        assert load["num_total_reqs"] == 3
    assert (await http.get("/v1/loads?dp_rank=1")).json()["loads"] == []
    for query in ("format=prometheus", "include=core,cores", "include=", "dp_rank=one", "dp_rank=-1"):
        refused = await http.get("/v1/loads?" + query)
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, query.partition("=")[0])
    (old,) = (await http.get("/get_load")).json()
    assert old == {"dp_rank": 0, "num_reqs": 3, "num_waiting_reqs": 1, "num_tokens": 64}


async def test_loads_of_transfers(http: httpx.AsyncClient, engine: Played) -> None:
    transfer = TransferStats(active=2, finished=4, fallbacks=1, bytes=10**9, seconds=0.5)
    engine.client.receive(StepOutputs([], EngineStats(transfer=transfer), 0.1))
    for query in ("", "?include=disagg"):
        (load,) = (await http.get("/v1/loads" + query)).json()["loads"]
        assert load["disaggregation"] == {
            "mode": "null", "prefill_inflight_queue_reqs": 0, "decode_transfer_queue_reqs": 0,
            "kv_transfer_speed_gb_s": 2.0, "kv_transfer_latency_ms": 125.0, "fallbacks": 1,
        }  # fmt: skip
    (load,) = (await http.get("/v1/loads?include=core")).json()["loads"]
    assert "disaggregation" not in load
    for mode in ("prefill", "decode"):
        made = disaggregation_load(mode, TransferStats(active=2))
        active = (made.prefill_inflight_queue_reqs, made.decode_transfer_queue_reqs)
        assert active == ((2, 0) if mode == "prefill" else (0, 2))
        assert (made.mode, made.kv_transfer_speed_gb_s, made.kv_transfer_latency_ms) == (mode, 0.0, 0.0)


async def test_what_automatic_depth_does(http: httpx.AsyncClient, engine: Played) -> None:
    async def speculative() -> list[object]:
        (load,) = (await http.get("/v1/loads?include=spec")).json()["loads"]
        (state,) = (await http.get("/server_info")).json()["internal_states"]
        said = load["speculative"]
        return [said.get("auto"), said.get("auto_line"), state.get("speculative_auto")]

    assert await speculative() == [None, None, None]
    auto = DraftingState(False, 16, 0.94, "drafts cost more than they bring", 3.4)
    engine.client.receive(StepOutputs([], EngineStats(auto=auto), 0.1))
    as_json = {
        "drafting": False,
        "requests": 16,
        "gain": 0.94,
        "reason": "drafts cost more than they bring",
        "tried": 3.4,
    }
    line = (
        "auto: not drafting at 16 requests; last tried 3 s ago; drafts would make 0.94 x the tokens/s "
        "(drafts cost more than they bring)"
    )
    assert f"auto: {drafting_words(auto)}" == line  # the log's
    assert await speculative() == [as_json, line, as_json]
    engine.client.receive(StepOutputs([], EngineStats(), 0.1))
    assert await speculative() == [None, None, None]


async def test_models(http: httpx.AsyncClient) -> None:
    (listed,) = (await http.get("/v1/models")).json()["data"]
    assert (await http.get("/v1/models/a/model")).json() == listed
    assert (listed["id"], listed["max_model_len"]) == ("a/model", 1024)
    other = await http.get("/v1/models/b")
    assert (other.status_code, other.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("prefix", ["", "/v1"])
async def test_tokens_and_back(http: httpx.AsyncClient, prefix: str) -> None:
    async def post(path: str, **body: Any) -> dict[str, Any]:
        response = await http.post(prefix + path, json=body)
        return dict(response.json(), status=response.status_code)

    one = await post("/tokenize", prompt="hé", return_token_strs=True)
    assert (one["count"], one["max_model_len"]) == (4, 1024)
    assert one["token_strs"] == ["<bos>", "h", "bytes:\\xc3", "bytes:\\xa9"]
    assert (await post("/detokenize", tokens=one["tokens"]))["text"] == "hé"
    assert (await post("/detokenize", tokens=one["tokens"], skip_special_tokens=False))["text"] == "<bos>hé"
    assert (await post("/detokenize", tokens=one["tokens"]))["prompt"] == "hé"  # vLLM's name
    many = await post("/tokenize", prompt=["a", "bc"], add_special_tokens=False)
    assert many["count"] == [1, 2]
    assert (await post("/detokenize", tokens=many["tokens"]))["text"] == ["a", "bc"]
    chat = await post("/tokenize", messages=[{"role": "user", "content": "hi"}])
    assert (await post("/detokenize", tokens=chat["tokens"]))["text"] == "user: hi\n"
    assert chat["tokens"].count(0) == 1  # the template puts BOS
    for path, body, param in (
        ("/tokenize", {"prompt": "x", "tools": [TOOL]}, "tools"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "hi"}]}, "prompt"),
        ("/tokenize", {"prompt": "a", "model": "b"}, "model"),
        ("/detokenize", {"tokens": [258]}, "tokens"),
        ("/detokenize", {"tokens": ["a"]}, "tokens"),
        ("/detokenize", {"tokens": []}, "tokens"),
    ):
        refused = await post(path, **body)
        assert refused["status"] == (404 if param == "model" else 400)
        assert refused["error"]["param"] == param


async def test_tokenizer_info(
    http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "model_folder", lambda path: tmp_path)
    assert (await http.get("/tokenizer_info")).json() == {
        "tokenizer_class": None, "bos_token": "<bos>", "eos_token": "<eos>", "add_bos_token": True,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip


async def test_openapi(http: httpx.AsyncClient, engine: Played) -> None:
    """Every route is in it, and what they answer is what it says."""
    document = (await http.get("/openapi.json")).json()
    engine.on = lambda message: Done(message.call, None) if hasattr(message, "call") else None
    schemas = {"components": document["components"]}
    for path in (
        "/v1/models",
        "/v1/loads",
        "/get_load",
        "/server_info",
        "/model_info",
        "/livez",
        "/tokenizer_info",
    ):
        content = document["paths"][path]["get"]["responses"]["200"]["content"]
        schema = content["application/json"]["schema"]
        jsonschema.validate((await http.get(path)).json(), {**schema, **schemas})
    known = {route.path for route in http._transport.app.routes}  # type: ignore[attr-defined]
    documented = {path.replace("{model}", "{model:path}") for path in document["paths"]}
    assert documented == known - {"/openapi.json", *PATHS}
    error = (await http.post("/v1/completions", json={})).json()
    jsonschema.validate(error, {"$ref": REF + "ErrorResponse", **schemas})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("get", "/metrics", None),
        ("post", "/flush_cache", None),
        ("post", "/abort_request", {"abort_all": True}),
        ("get", "/livez", None),
    ],
)
async def test_kinds_of_answers_are_what_openapi_says(
    http: httpx.AsyncClient, engine: Played, method: str, path: str, body: Any
) -> None:
    engine.on = lambda message: Done(message.call, None) if hasattr(message, "call") else None
    documented = (await http.get("/openapi.json")).json()["paths"][path][method]["responses"]["200"]
    answer = await http.request(method, path, json=body)
    kind = answer.headers.get("content-type", "").partition(";")[0]
    assert (answer.status_code, list(documented.get("content", {}))) == (200, [kind] if kind else [])
    assert bool(kind) == bool(answer.content)


@pytest.mark.parametrize(
    ("path", "methods"),
    [("/generate", "POST, PUT"), ("/flush_cache", "GET, POST"), ("/version", "GET"), ("/", "GET, HEAD")],
)
async def test_a_wrong_method_is_told_all_the_right_ones(
    http: httpx.AsyncClient, path: str, methods: str
) -> None:
    answer = await http.delete(path)
    assert (answer.status_code, answer.headers["allow"]) == (405, methods)


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
MESSAGES = [{"role": "user", "content": "x"}]
BODIES: list[tuple[str, str, dict[str, Any]]] = [
    *(("/v1/completions", "CompletionRequest", {"prompt": "x", **fields}) for fields in (
        {}, {"stop": "a"}, {"stop": ["a"]}, {"stop": [""]}, {"stop": 5}, {"n": 0}, {"temperature": None},
        {"logprobs": 21}, {"suffix": ""}, {"suffix": 5}, {"speculative": False}, {"speculative": True},
        {"speculative": {"num_step": 1}}, {"best_of": 3}, {"priority": 1.5}, {"gateway": [1]},
    )),
    *(("/v1/completions", "CompletionRequest", {"prompt": prompt}) for prompt in (
        ["a"], [1], [[1]], "", [], [[]], {}, [None], ["a", 1], [-1],
    )),
    *(("/v1/chat/completions", "ChatRequest", {"messages": MESSAGES, **fields}) for fields in (
        {}, {"tools": []}, {"tools": [{}]}, {"tool_choice": "any"}, {"tool_choice": "none"}, {"echo": True},
        {"tool_choice": {"function": {}}}, {"reasoning_effort": "none"}, {"modalities": ["text"]},
    )),
    *(("/generate", "GenerateRequest", {"text": "x", **fields}) for fields in (
        {"sampling_params": {"n": 2}}, {"sampling_params": {"m": 2}}, {"sampling_params": [{"n": 1}]},
        {"top_logprobs_num": 21}, {"rid": ["a"]}, {"rid": 5}, {"return_logprob": 1},
    )),
    ("/tokenize", "TokenizeRequest", {"prompt": ["a"], "model": None}),
    ("/tokenize", "TokenizeRequest", {"prompt": 5}),
    ("/detokenize", "DetokenizeRequest", {"tokens": [5]}),
    ("/detokenize", "DetokenizeRequest", {"tokens": [[]]}),
    ("/detokenize", "DetokenizeRequest", {"tokens": [[-1]]}),
    ("/abort_request", "AbortRequest", {"rid": "a"}),
    ("/abort_request", "AbortRequest", {"rid": 5}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "name", "body"), BODIES, ids=str)
async def test_bodies_are_what_openapi_says(
    http: httpx.AsyncClient, engine: Played, path: str, name: str, body: dict[str, Any]
) -> None:
    """Taken if and only if the schema takes them."""

    def end(message: Any) -> FromEngine | None:
        if not isinstance(message, Add):
            return None
        ends = [Output(r.rid, [5], [0], "length", spec=SpecStats()) for r in message.requests]
        for out in ends:
            out.logprobs = None
        return StepOutputs(ends, EngineStats(), 0.1)

    engine.on = end
    document = (await http.get("/openapi.json")).json()
    validator = jsonschema.Draft202012Validator({"$ref": REF + name, "components": document["components"]})
    response = await http.post(path, json=body)
    assert response.status_code in (200, 400), response.text
    assert validator.is_valid(body) is (response.status_code == 200), response.text
