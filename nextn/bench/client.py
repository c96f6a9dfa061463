"""The load client: it runs n streams at once and times each of them chunk by chunk.

loaded = await run_load("http://127.0.0.1:30000", bodies, concurrency=16)
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from nextn.bench.apis import COMPLETIONS, Api, Body
from nextn.bench.errors import BenchError, RequestError
from nextn.bench.transport import Transport

SILENCE_SECONDS = 300.0  # a request fails if the server sends nothing for this long


@dataclass(frozen=True)
class Reply:
    """One streamed completion. Times are seconds on `time.perf_counter`'s clock."""

    text: str
    prompt_tokens: int
    completion_tokens: int
    sent: float
    arrivals: tuple[float, ...]  # of each chunk with text or a finish reason; at least one
    counts: tuple[int, ...] = ()  # tokens so far at each arrival; empty if the API does not send them

    @property
    def ttft(self) -> float:
        """Seconds to the first token, measured as the time to the first chunk."""
        return self.arrivals[0] - self.sent

    @property
    def latency(self) -> float:
        return self.arrivals[-1] - self.sent

    @property
    def tpot(self) -> float | None:
        """Seconds per output token after the first; None if there was only one token."""
        rest = self.completion_tokens - 1
        return (self.latency - self.ttft) / rest if rest > 0 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between chunks. A chunk has as many tokens as the server committed in one step. If the API
        sends token counts, each token gets an equal share of its chunk's gap, as in bench_serving."""
        gaps = [b - a for a, b in zip(self.arrivals, self.arrivals[1:], strict=False)]
        if not self.counts:
            return gaps
        new = [b - a for a, b in zip(self.counts, self.counts[1:], strict=False)]
        return [gap / n for gap, n in zip(gaps, new, strict=True) for _ in range(n)]


@dataclass(frozen=True)
class Load:
    """The result of one load. `outcomes` are in the order of the requests."""

    outcomes: Sequence[Reply | RequestError]
    seconds: float  # from the first request sent to the last chunk received

    @property
    def replies(self) -> list[Reply]:
        return [o for o in self.outcomes if isinstance(o, Reply)]

    @property
    def failures(self) -> list[RequestError]:
        return [o for o in self.outcomes if isinstance(o, RequestError)]


def make_client(url: str, silence: float = SILENCE_SECONDS, api_key: str | None = None) -> httpx.AsyncClient:
    """Makes a client without a proxy and without a limit on connections. The caller closes it. `silence`:
    seconds without data after which a request fails."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(silence, connect=10.0),
        headers={"Authorization": f"Bearer {api_key}"} if api_key else None,
        transport=Transport(),
        trust_env=False,
    )


async def run_load(
    url: str, bodies: Sequence[Body], concurrency: int, on_reply: Callable[[], None] = lambda: None
) -> Load:
    """Sends every body, in order, with `concurrency` requests in flight.

    Raises RequestError for the first request that fails, and cancels the others.
    """
    async with make_client(url) as client:

        async def one(index: int) -> Reply:
            reply = await stream(client, bodies[index])
            on_reply()
            return reply

        return await timed(one, [0.0] * len(bodies), concurrency)


async def measure_load(
    client: httpx.AsyncClient,
    api: Api,
    bodies: Sequence[Body],
    arrivals: Sequence[float],
    concurrency: int | None,
    on_outcome: Callable[[], None] = lambda: None,
) -> Load:
    """Sends body i `arrivals[i]` seconds from now, or later if `concurrency` are in flight (None: no limit).

    A failed request becomes a RequestError in `outcomes`; it is not raised.
    """

    async def one(index: int) -> Reply | RequestError:
        try:
            return await stream(client, bodies[index], api)
        except RequestError as failure:
            return failure
        finally:
            on_outcome()

    return await timed(one, arrivals, concurrency)


async def timed(
    one: Callable[[int], Coroutine[Any, Any, Reply | RequestError]],
    arrivals: Sequence[float],
    concurrency: int | None,
) -> Load:
    """Runs `one(i)` at every arrival. An exception in one call cancels all the others."""
    turns = asyncio.Semaphore(concurrency or max(len(arrivals), 1))
    begin = time.perf_counter()

    async def at(index: int, arrival: float) -> Reply | RequestError:
        if (wait := begin + arrival - time.perf_counter()) > 0:
            await asyncio.sleep(wait)
        async with turns:
            return await one(index)

    tasks = [asyncio.ensure_future(at(i, arrival)) for i, arrival in enumerate(arrivals)]
    try:
        outcomes = await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return Load(outcomes, time.perf_counter() - begin)


async def stream(client: httpx.AsyncClient, body: Body, api: Api = COMPLETIONS) -> Reply:
    """Streams one request. Raises RequestError if the answer is an error, is incomplete or cannot be read."""
    where = f"POST {client.base_url.join(api.path)}"
    text = ""
    arrivals: list[float] = []
    counts: list[int] = []
    prompt_tokens = completion_tokens = None
    ended = False
    sent = time.perf_counter()
    try:
        async with client.stream("POST", api.path, json=api.streamed(body)) as response:
            if response.status_code != 200:
                raise refusal(response.status_code, await response.aread())
            async for data in events(response.aiter_bytes()):
                now = time.perf_counter()
                chunk = msgspec.json.decode(data)
                if "error" in chunk:
                    raise refusal(response.status_code, data)
                update = api.read(chunk)
                if update.prompt_tokens is not None:
                    prompt_tokens = update.prompt_tokens
                if update.completion_tokens is not None:
                    completion_tokens = update.completion_tokens
                ended = ended or update.ends
                new = update.text != text if update.cumulative else update.text != ""
                text = update.text if update.cumulative else text + update.text
                if new or update.ends:
                    arrivals.append(now)
                    if api.counts:
                        counts.append(completion_tokens or 0)
    except httpx.HTTPError as e:
        raise RequestError(type(e).__name__, f"{where}: {type(e).__name__}: {e}") from e
    except (ValueError, KeyError, TypeError, IndexError) as e:
        raise RequestError("unreadable answer", f"{where}: unreadable answer: {type(e).__name__}: {e}") from e
    if prompt_tokens is None or completion_tokens is None or not ended:
        raise RequestError("broken stream", f"{where}: the stream ended before the completion did")
    return Reply(text, prompt_tokens, completion_tokens, sent, tuple(arrivals), tuple(counts))


async def events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yields the data of server-sent events up to [DONE]. Only b"\\n" ends a line: other line separators in
    a text, for example U+2028, are not escaped in JSON."""
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


def refusal(status: int, body: bytes) -> RequestError:
    """Makes an error with the server's own message if there is one. An error within a stream has status
    200."""
    try:
        words = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        words = body[:200].decode(errors="replace")
    kind = f"HTTP {status}" if status != 200 else "error in the stream"
    return RequestError(kind, f"the server answered with an error ({status}): {words}")


async def get(url: str, path: str, api_key: str | None = None) -> Any:
    """GETs JSON. Raises BenchError."""
    return _json(await _answer(url, "GET", path, None, api_key))


async def get_with(client: httpx.AsyncClient, path: str) -> Any:
    """Like `get`, with an existing client: making a client takes 30 ms of a core. Raises BenchError."""
    return _json(await _request(client, "GET", path, None))


async def get_text(url: str, path: str, api_key: str | None = None) -> str:
    """GETs text. Raises BenchError."""
    return (await _answer(url, "GET", path, None, api_key)).text


async def get_text_with(client: httpx.AsyncClient, path: str) -> str:
    """Like `get_text`, with an existing client. Raises BenchError."""
    return (await _request(client, "GET", path, None)).text


async def post(url: str, path: str, body: Body) -> Any:
    """POSTs `body` as JSON and returns the answer's JSON. Raises BenchError."""
    return _json(await _answer(url, "POST", path, body, None))


async def _answer(url: str, method: str, path: str, body: Body | None, api_key: str | None) -> httpx.Response:
    async with make_client(url, api_key=api_key) as client:
        return await _request(client, method, path, body)


async def _request(client: httpx.AsyncClient, method: str, path: str, body: Body | None) -> httpx.Response:
    try:
        response = await client.request(method, path, json=body)
    except httpx.HTTPError as e:
        raise BenchError(f"{method} {client.base_url.join(path)}: {type(e).__name__}: {e}") from e
    if response.status_code != 200:
        raise BenchError(f"{method} {path}: {refusal(response.status_code, response.content)}")
    return response


def _json(response: httpx.Response) -> Any:
    try:
        return response.json()
    except ValueError as e:
        raise BenchError(f"{response.request.method} {response.url}: {type(e).__name__}: {e}") from e
