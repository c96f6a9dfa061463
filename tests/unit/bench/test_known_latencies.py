"""`nextn bench serve` against a server whose latencies are known: it gives them back.

Known is when the server had a request and when it wrote each chunk. Server and client take turns on one event
loop, and its clock is theirs: it stands still while they work and moves on where both would wait. So it does
not matter how busy the machine is, and both must agree within a thousandth.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import selectors
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from nextn.bench.datasets import Options
from nextn.bench.serve import Settings, measure

COUNTS = (1, 3, 4, 6)  # tokens there are at each chunk
FIRST, GAP = 0.3, 0.06  # seconds that the server sleeps before the first chunk, and between chunks
PROMPT_TOKENS, PROMPTS, CONCURRENCY = 9, 6, 3
TOKENS = COUNTS[-1]


class Waiting(selectors.DefaultSelector):
    """Where nothing comes until a timer, `now` goes there at once."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout <= 0:
            return super().select(timeout)
        events = super().select(0.02)  # what is under way between two sockets
        if not events:
            self.now += timeout
        return events


class Loop(asyncio.SelectorEventLoop):
    """Its time is the selector's."""

    def __init__(self) -> None:
        self.waiting = Waiting()
        super().__init__(self.waiting)

    def time(self) -> float:
        return self.waiting.now


@dataclass
class Served:
    """What the server did for one request, on `time.perf_counter`'s clock."""

    received: float
    written: list[float] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        return self.written[0] - self.received

    @property
    def latency(self) -> float:
        return self.written[-1] - self.received

    @property
    def gaps(self) -> list[float]:
        return np.diff(self.written).tolist()


@contextlib.asynccontextmanager
async def serving(served: list[Served]) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine = Served(time.perf_counter())  # when it is connected: a new connection for every request
        head = await reader.readuntil(b"\r\n\r\n")
        path = head.split()[1].decode()
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        if head.startswith(b"POST"):
            served.append(mine)
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n")
            for index in range(len(COUNTS)):
                # Requests keep apart by a few milliseconds, as they would not all end in one step.
                await asyncio.sleep((GAP if index else FIRST) + 0.004 * (len(served) % CONCURRENCY))
                writer.write(event(chunk(path, index)))
                mine.written.append(time.perf_counter())
            writer.write(b"" if path == "/generate" else event(usage()))
            writer.write(b"data: [DONE]\n\n")
        else:
            found = path == "/v1/models"
            body = json.dumps({"data": [{"id": "m"}]}).encode() if found else b"{}"
            status = b"200 OK" if found else b"404 No"
            writer.write(b"HTTP/1.1 %s\r\ncontent-length: %d\r\n" % (status, len(body)))
            writer.write(b"connection: close\r\n\r\n" + body)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def chunk(path: str, index: int) -> dict[str, Any]:
    ends = "length" if index == len(COUNTS) - 1 else None
    if path == "/generate":
        meta = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": COUNTS[index]}
        reason = {"type": "length"} if ends else None
        return {"text": "x" * COUNTS[index], "meta_info": meta | {"finish_reason": reason}}
    text: dict[str, Any] = {"delta": {"content": "x"}} if path == "/v1/chat/completions" else {"text": "x"}
    return {"choices": [text | {"finish_reason": ends}]}


def usage() -> dict[str, Any]:
    return {"choices": [], "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": TOKENS}}


def typical(name: str, seconds: list[float]) -> dict[str, float]:
    """The record's keys for one latency that a moment's pause of the machine does not move much."""
    return {f"mean_{name}_ms": 1000 * np.mean(seconds), f"median_{name}_ms": 1000 * np.median(seconds)}


@pytest.fixture
def loop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loop]:
    """`time.perf_counter` tells its time."""
    made = Loop()
    monkeypatch.setattr("time.perf_counter", made.time)
    yield made
    made.run_until_complete(made.shutdown_asyncgens())
    made.close()


@pytest.mark.parametrize("backend", ["nextn", "sglang-oai-chat", "sglang"])  # the three APIs
def test_they_come_back(loop: Loop, backend: str) -> None:
    loop.run_until_complete(check(backend))


async def check(backend: str) -> None:
    served: list[Served] = []
    settings = Settings(
        Options(num_prompts=PROMPTS, output_len=TOKENS), backend, max_concurrency=CONCURRENCY,
        warmup_requests=0,
    )  # fmt: skip
    async with serving(served) as url:
        outcome = await measure(settings, url, {})
    record = outcome.record()

    assert len(served) == PROMPTS
    assert min(s.ttft for s in served) >= FIRST * 0.99
    assert min(gap for s in served for gap in s.gaps) >= GAP * 0.99
    duration = max(s.written[-1] for s in served) - min(s.received for s in served)
    # /generate says how many tokens a chunk brings, and each has its share of the gap.
    new = np.diff(COUNTS).tolist() if backend == "sglang" else [1] * (len(COUNTS) - 1)
    itls = [gap / n for s in served for gap, n in zip(s.gaps, new, strict=True) for _ in range(n)]
    known = {
        **typical("ttft", [s.ttft for s in served]),
        **typical("e2e_latency", [s.latency for s in served]),
        **typical("tpot", [(s.latency - s.ttft) / (TOKENS - 1) for s in served]),
        **typical("itl", itls),
        "duration": duration,
        "request_throughput": PROMPTS / duration,
        "input_throughput": PROMPTS * PROMPT_TOKENS / duration,
        "output_throughput": PROMPTS * TOKENS / duration,
        "total_throughput": PROMPTS * (PROMPT_TOKENS + TOKENS) / duration,
        "concurrency": sum(s.latency for s in served) / duration,
    }
    wrong = {
        name: (record[name], value) for name, value in known.items() if abs(record[name] / value - 1) > 1e-3
    }
    assert not wrong
    assert (record["completed"], record["failed"]) == (PROMPTS, 0)
    assert record["total_input_tokens"] == PROMPTS * PROMPT_TOKENS
    assert record["total_output_tokens"] == PROMPTS * TOKENS
