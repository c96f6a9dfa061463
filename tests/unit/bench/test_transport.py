"""HTTP/1.1 under httpx, against a server that writes what a test says."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from nextn.bench.transport import Transport, within

BIG = 3 << 20
LENGTH = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-name: value\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
UNTIL_CLOSED = b"HTTP/1.1 200 OK\r\n\r\nhello"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH
CLOSE = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
CUT = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 9\r\n\r\nhello"
CUT_CHUNK = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhello"
NONSENSE = b"HELLO\r\n\r\n"
LARGE = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % BIG + b"x" * BIG
SILENT = b""


class Played:
    """Answers the requests of each connection in turn; after the last it closes it, unless it is silent."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests: list[bytes] = []

    @contextlib.asynccontextmanager
    async def serving(self, answers: Sequence[bytes], pieces: int = 0) -> AsyncIterator[httpx.AsyncClient]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.connections += 1
            handlers.append(asyncio.current_task())
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                for answer in answers:
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(
                        (head.lower() + b"content-length:0\r\n").split(b"content-length:")[1].split()[0]
                    )
                    self.requests.append(head + await reader.readexactly(length))
                    for at in range(0, len(answer), pieces or max(1, len(answer))):
                        writer.write(answer[at : at + (pieces or len(answer))])
                        await writer.drain()
                        await asyncio.sleep(0)
                    if answer is SILENT:
                        await reader.read()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

        handlers: list[asyncio.Task[None] | None] = []
        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with server, httpx.AsyncClient(base_url=url, transport=Transport(), trust_env=False) as client:
            yield client
        await asyncio.gather(*filter(None, handlers))


@pytest.mark.parametrize("pieces", [0, 1, 7])
@pytest.mark.parametrize("answer", [LENGTH, CHUNKED, UNTIL_CLOSED, CONTINUE, CLOSE])
async def test_answers_however_they_are_cut(answer: bytes, pieces: int) -> None:
    async with Played().serving([answer], pieces) as client:
        response = await client.post("/path?query=1", json={"a": 1})
    assert (response.status_code, response.text) == (200, "hello")


async def test_what_is_sent() -> None:
    played = Played()
    async with played.serving([LENGTH]) as client:
        response = await client.post("/path?query=1", content=b"body", headers={"x-mine": "1"})
    assert response.headers["x-name"] == "value"
    (request,) = played.requests
    assert request.startswith(b"POST /path?query=1 HTTP/1.1\r\n")
    assert b"\r\nx-mine: 1\r\n" in request
    assert request.endswith(b"\r\n\r\nbody")


@pytest.mark.parametrize(("answer", "connections"), [(LENGTH, 1), (CHUNKED, 1), (CLOSE, 3)])
async def test_connections_are_used_again(answer: bytes, connections: int) -> None:
    played = Played()
    async with played.serving([answer] * (1 if answer is CLOSE else 3)) as client:
        for _ in range(3):
            assert (await client.get("/")).text == "hello"
    assert played.connections == connections


async def test_an_answer_that_is_left_ends_its_connection() -> None:
    played = Played()
    async with played.serving([LARGE, LENGTH]) as client:
        async with client.stream("GET", "/") as response:
            async for _ in response.aiter_raw():
                break
        assert (await client.get("/")).status_code == 200
    assert played.connections == 2


async def test_an_answer_that_is_read_slowly() -> None:
    async with Played().serving([LARGE]) as client:
        size = 0
        async with client.stream("GET", "/") as response:
            async for part in response.aiter_raw():
                size += len(part)
                await asyncio.sleep(0.001)
    assert size == BIG


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (CUT, httpx.RemoteProtocolError),
        (CUT_CHUNK, httpx.RemoteProtocolError),
        (NONSENSE, httpx.RemoteProtocolError),
        (SILENT, httpx.ReadTimeout),
    ],
)
async def test_failures(answer: bytes, error: type[Exception]) -> None:
    async with Played().serving([answer]) as client:
        client.timeout = httpx.Timeout(0.2)
        with pytest.raises(error):
            await client.get("/")


async def test_nobody_there() -> None:
    async with Played().serving([]) as client:
        url = client.base_url
    async with httpx.AsyncClient(transport=Transport()) as client:
        with pytest.raises(httpx.ConnectError):
            await client.get(url)


async def test_a_cancellation_as_the_work_is_done_is_not_lost() -> None:
    made = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await made

    task = asyncio.create_task(within(work(), 5.0))
    await asyncio.sleep(0.01)
    made.set_result(None)
    await asyncio.sleep(0)  # the work is done, and `within` does not know yet
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_work_that_takes_too_long_is_cancelled() -> None:
    waiting = asyncio.get_running_loop().create_future()

    async def work() -> None:
        await waiting

    with pytest.raises(asyncio.TimeoutError):
        await within(work(), 0.01)
    await asyncio.sleep(0)
    assert waiting.cancelled()
