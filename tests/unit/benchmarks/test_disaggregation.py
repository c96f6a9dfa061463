"""The arithmetic of benchmarks/disaggregation.py, and what its driver sends to whom."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from nextn.bench.client import Reply

FOLDER = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.syspath_prepend(str(FOLDER))
    import disaggregation

    yield disaggregation
    for name in ("disaggregation", "apart", "rates", "depth_claims", "last_line"):
        sys.modules.pop(name, None)


def test_gaps_are_those_that_lie_in_the_time_or_reach_into_it(script: Any) -> None:
    streams = object.__new__(script.Streams)
    streams.replies = {
        i: Reply("", 1, 3, 0.0, times) for i, times in enumerate(((0.0, 1.0, 1.5, 4.0), (5.0, 9.0)))
    }
    assert streams.gaps(1.2, 6.0) == [0.5, 2.5, 4.0]


def test_ratios_are_above_one_where_two_servers_are_better(script: Any) -> None:
    one, two = script.Found(8, 8, 8, 8, 8, 10, 0, 0, 0), script.Found(4, 2, 2, 8, 16, 20, 3, 0, 9)
    found = script.ratios({"one": [one, one], "two": [two, two]})
    assert {name: each["median"] for name, each in found.items()} == {
        "itl_p50_ms": 2, "itl_p99_ms": 4, "ttft_p50_ms": 1, "ttft_p99_ms": 0.5, "tokens_per_s": 2,
    }  # fmt: skip


def test_each_request_goes_to_both_servers_with_the_same_room(script: Any) -> None:
    seen: dict[str, list[dict[str, Any]]] = {"prefill": [], "decode": []}

    def answer(request: httpx.Request) -> httpx.Response:
        seen[request.url.host].append(json.loads(request.content))
        if request.url.host == "prefill":
            return httpx.Response(503)
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        chunk = {"choices": [{"index": 0, "text": "a", "finish_reason": "length"}], "usage": usage}
        return httpx.Response(200, text=f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n")

    async def send() -> str:
        clients = [
            httpx.AsyncClient(base_url=f"http://{name}", transport=httpx.MockTransport(answer))
            for name in seen
        ]
        servers = [SimpleNamespace(model="m", url=f"http://{name}") for name in seen]
        apart = script.Apart("two", servers[1], clients[1], servers[0], clients[0], 8998)
        reply = await apart.send({"prompt": "x", "max_tokens": 1})
        for client in clients:
            await client.aclose()
        return str(reply.text)

    assert asyncio.run(send()) == "a"
    fields = ("model", "prompt", "bootstrap_room", "bootstrap_host", "bootstrap_port")
    (decode,) = seen["decode"]
    assert [[body[name] for name in fields] for body in seen["prefill"]] in (
        [[decode[n] for n in fields]],
        [],
    )
    assert decode["bootstrap_host"] == "prefill"
    assert 0 <= decode["bootstrap_room"] < 2**63
