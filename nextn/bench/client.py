"""A load client for OpenAI's /v1/completions: so many streams at once, each timed chunk by chunk.

loaded = await run_load("http://127.0.0.1:30000", bodies, concurrency=16)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from nextn.bench.errors import BenchError

SILENCE_SECONDS = 300.0  # a server that sends nothing for so long is taken for dead
Body = Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """One streamed completion. Times are seconds on `time.perf_counter`'s clock."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    sent: float
    arrivals: tuple[float, ...]  # of each chunk that brought text or the end; at least one

    @property
    def ttft(self) -> float:
        """Time to the first token: to the first chunk, that is."""
        return self.arrivals[0] - self.sent

    @property
    def latency(self) -> float:
        return self.arrivals[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Time per output token after the first; None when there was one token only."""
        rest = self.completion_tokens - 1
        return (self.latency - self.ttft) / rest if rest > 0 else None

    @property
    def gaps(self) -> list[float]:
        """Times between chunks. A chunk has as many tokens as the server committed in one step."""
        return [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]


@dataclass(frozen=True)
class Load:
    """What came of one load. `replies` are in the order of the requests."""

    replies: list[Reply]
    seconds: float  # from the first request sent to the last chunk received


def make_client(url: str) -> httpx.AsyncClient:
    """No proxy and no limit on connections. The caller closes it."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(SILENCE_SECONDS, connect=10.0),
        limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        trust_env=False,
    )


async def run_load(
    url: str, bodies: Sequence[Body], concurrency: int, on_reply: Callable[[], None] = lambda: None
) -> Load:
    """Sends every body, in order, with `concurrency` in flight as long as there are so many left.

    Raises BenchError for the first request that fails; the others are then given up.
    """
    replies: dict[int, Reply] = {}
    todo = iter(enumerate(bodies))

    async with make_client(url) as client:

        async def work() -> None:
            for index, body in todo:
                replies[index] = await stream_completion(client, body)
                on_reply()

        begin = time.perf_counter()
        workers = [asyncio.ensure_future(work()) for _ in range(concurrency)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        seconds = time.perf_counter() - begin
    return Load([replies[i] for i in range(len(bodies))], seconds)


async def stream_completion(client: httpx.AsyncClient, body: Body) -> Reply:
    """Raises BenchError when the answer is an error, breaks off or cannot be read."""
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    texts: list[str] = []
    arrivals: list[float] = []
    usage: dict[str, Any] | None = None
    sent = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/completions", json=asked) as response:
            if response.status_code != 200:
                raise BenchError(refusal(response.status_code, await response.aread()))
            async for data in events(response.aiter_bytes()):
                now = time.perf_counter()
                chunk = json.loads(data)
                if "error" in chunk:
                    raise BenchError(refusal(response.status_code, data))
                usage = chunk.get("usage") or usage
                for choice in chunk["choices"]:
                    if choice["text"] or choice["finish_reason"]:
                        texts.append(choice["text"])
                        arrivals.append(now)
    except (httpx.HTTPError, ValueError, KeyError) as e:
        raise BenchError(f"POST {client.base_url}/v1/completions: {type(e).__name__}: {e}") from e
    if usage is None or not arrivals:
        raise BenchError(f"POST {client.base_url}/v1/completions: the stream ended before the completion did")
    return Reply("".join(texts), usage["prompt_tokens"], usage["completion_tokens"], sent, tuple(arrivals))


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of server-sent events up to [DONE]. Lines end at b"\\n" only: a text's own line
    separators, such as U+2028, are not escaped in JSON."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if not line.startswith(b"data:"):
                continue
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data


def refusal(status: int, body: bytes) -> str:
    """The server's own words for an error, if it has any."""
    try:
        words = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        words = body[:200].decode(errors="replace")
    return f"the server answered with an error ({status}): {words}"
