"""Every choice ends as one of finished, aborted and failed, and is logged as far as was asked for."""

from __future__ import annotations

import asyncio
import logging

import pytest
from support.engine_socket import EngineSocket

from nextn.request import Output, SamplingParams
from nextn.server.answers.choice import Prompt
from nextn.server.answers.generation import Generation
from nextn.server.monitoring import request_log
from nextn.server.monitoring.metrics import Metrics
from nextn.server.monitoring.request_log import RequestLog
from nextn.server.monitoring.watch import Watch
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import Ready, Rejected, StepOutputs
from nextn.server.protocol.errors import ApiError, shut_down
from nextn.stats import EngineStats
from nextn.tokenizer.tokenizer import Tokenizer


def engine(timeout: float | None = None) -> EngineClient:
    made = EngineClient(request_timeout=timeout)
    made.attach(Ready(258, 1024, 2, {}, EngineStats()), EngineSocket())  # type: ignore[arg-type]
    return made


def outcome(metrics: Metrics) -> tuple[int, int, int, int]:
    return metrics.requests, sum(metrics.finished.values()), metrics.aborted, metrics.failed


def a_generation(
    client: EngineClient, tokenizer: Tokenizer, arrival: float | None = None, watch: Watch | None = None
) -> Generation:
    prompt = Prompt(tokenizer.encode("secret"), SamplingParams(max_tokens=9, temperature=0.5), name="mine")
    arrival = asyncio.get_running_loop().time() if arrival is None else arrival
    return Generation(client, tokenizer, [prompt], 2, arrival, observer=watch)


async def read(generation: Generation) -> str:
    return "".join([delta.text async for delta in generation.deltas()])


async def play(tokenizer: Tokenizer, end: str, log: RequestLog | None = None) -> Metrics:
    client = engine(0.01 if end == "deadline" else None)
    metrics = Metrics(client)
    watch = Watch(metrics, log or RequestLog(None, tokenizer.decode))
    generation = a_generation(client, tokenizer, watch=watch)
    first, second = (choice.request.rid for choice in generation.choices)
    reading = asyncio.ensure_future(read(generation))
    await asyncio.sleep(0)
    one = Output(first, [70, 71], [1, 0], "length", queued=0.25)
    client.receive(StepOutputs([one], EngineStats(), 0.1))
    await asyncio.sleep(0)
    if end == "whole":
        client.receive(StepOutputs([Output(second, [70], [0], "stop")], EngineStats(), 0.1))
    elif end == "shutdown":
        client.fail_all(shut_down())
    elif end == "dead":
        client.detach("the engine died")
    elif end == "rejected":
        client.receive(Rejected(second, "no"))
    elif end == "client":
        reading.cancel()
    elif end == "client before the last output":
        client.receive(StepOutputs([Output(second, [70], [0], "stop")], EngineStats(), 0.1))
        reading.cancel()
    try:
        await reading
    except (ApiError, asyncio.CancelledError):
        assert end != "whole"
    assert client.active == 0
    return metrics


@pytest.mark.parametrize(
    ("end", "counted"),
    [
        ("whole", (2, 2, 0, 0)),
        ("client", (2, 1, 1, 0)),
        ("client before the last output", (2, 1, 1, 0)),
        ("deadline", (2, 1, 1, 0)),
        ("shutdown", (2, 1, 1, 0)),
        ("dead", (2, 1, 0, 1)),
        ("rejected", (2, 1, 0, 1)),
    ],
)
async def test_every_choice_is_accounted_for(
    tokenizer: Tokenizer, end: str, counted: tuple[int, ...]
) -> None:
    metrics = await play(tokenizer, end)
    assert outcome(metrics) == counted
    lines = metrics.render().decode().splitlines()
    assert "nextn:queue_time_seconds_sum 0.25" in lines or end == "whole"
    assert f"nextn:e2e_request_latency_seconds_count {float(counted[1])}" in lines


async def test_deadline_tells_its_client(tokenizer: Tokenizer) -> None:
    with pytest.raises(ApiError, match=r"did not finish within 0\.01 s") as error:
        await read(a_generation(engine(0.01), tokenizer))
    assert (error.value.status, error.value.code) == (504, "request_timeout")


async def test_a_deadline_that_passed_before_it_came_to_the_engine(tokenizer: Tokenizer) -> None:
    with pytest.raises(ApiError, match="did not finish"):
        await read(a_generation(engine(5.0), tokenizer, arrival=-1e9))


async def test_what_is_not_logged_is_not_worded(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    worded: list[str] = []
    monkeypatch.setattr(request_log, "summary", lambda choice, arrival: worded.append(choice.id) or "x")
    for level, lines in ((logging.INFO, 0), (logging.DEBUG, 2)):
        with caplog.at_level(level, "nextn.request"):
            await play(tokenizer, "whole", RequestLog(None, tokenizer.decode))
        assert len(worded) == len(caplog.messages) == lines


@pytest.mark.parametrize("level", [None, 0, 1, 2, 3])
async def test_what_each_level_tells(
    tokenizer: Tokenizer, level: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "nextn.request"):
        await play(tokenizer, "client", RequestLog(level, tokenizer.decode))
    if level is None:
        assert caplog.messages == []
        return
    received, finished, gave_up = caplog.messages
    assert received.startswith("Received request, id: 'mine_0', #prompt-token: 7")
    assert ("'temperature': 0.5" in received) == (level >= 1)
    assert ("secret" in received) == (level >= 2)
    assert finished.startswith("Finished request, id: 'mine_0', ")
    assert ("text: " in finished) == (level >= 2)
    assert "why: the client disconnected" in gave_up
    fields = caplog.records[1].fields  # type: ignore[attr-defined]
    assert (fields["queue_time"], fields["finish_reason"]) == (0.25, "length")
    assert fields["ttft"] <= fields["e2e"]
