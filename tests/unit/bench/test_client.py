"""The load client against a small server of its own: order, concurrency, timing, and every way to fail."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from nextn.bench.client import events, make_client, run_load, stream
from nextn.bench.errors import BenchError

Answer = Callable[[dict[str, Any], asyncio.StreamWriter], Awaitable[None]]
OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[str]:
    """`answer` writes the whole HTTP answer to one request, whose JSON body it gets."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
            await answer(json.loads(await reader.readexactly(length)), writer)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


def event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


def chunk(text: str, finish_reason: str | None = None) -> bytes:
    return event({"choices": [{"text": text, "finish_reason": finish_reason}], "usage": None})


def usage(tokens: int) -> bytes:
    return event({"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}})


async def echo(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    writer.write(OK + chunk("you said ") + chunk(body["prompt"]) + chunk("", "length") + usage(5))
    writer.write(b"data: [DONE]\n\n")


async def test_replies_are_in_the_order_of_the_requests() -> None:
    replied = []

    async def later_first(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.05 if body["prompt"] == "p0" else 0)
        await echo(body, writer)

    async with serving(later_first) as url:
        load = await run_load(url, [{"prompt": f"p{i}"} for i in range(5)], 3, lambda: replied.append(1))
    assert [r.text for r in load.replies] == [f"you said p{i}" for i in range(5)]
    assert [(r.prompt_tokens, r.completion_tokens) for r in load.replies] == [(9, 5)] * 5
    assert len(replied) == 5
    assert 0.05 < load.seconds < 5
    for reply in load.replies:
        assert len(reply.arrivals) == 3
        assert 0 < reply.ttft <= reply.latency < load.seconds


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_so_many_at_once_and_no_more(concurrency: int) -> None:
    running, most = 0, 0

    async def count(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        await echo(body, writer)

    async with serving(count) as url:
        await run_load(url, [{"prompt": "p"}] * 9, concurrency)
    assert most == concurrency


async def test_time_to_first_token_is_the_first_chunk() -> None:
    async def slow_start(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(OK + chunk(""))  # brings nothing: not a token yet
        await writer.drain()
        await asyncio.sleep(0.1)
        await echo_without_head(writer)

    async def echo_without_head(writer: asyncio.StreamWriter) -> None:
        writer.write(chunk("a") + chunk("b", "length") + usage(2) + b"data: [DONE]\n\n")

    async with serving(slow_start) as url:
        load = await run_load(url, [{"prompt": "p"}], 1)
    assert load.replies[0].ttft > 0.09


async def refuse(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    answer = json.dumps({"error": {"message": "the queue is full"}}).encode()
    writer.write(b"HTTP/1.1 503 No\r\ncontent-length: %d\r\n\r\n" % len(answer) + answer)


async def refuse_without_json(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 502 No\r\ncontent-length: 7\r\n\r\nproxy\xff!")


async def fail_midway(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(OK + chunk("a") + event({"error": {"message": "the engine died"}}) + b"data: [DONE]\n\n")


async def break_off(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(OK + chunk("a"))


async def talk_nonsense(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.write(OK + b"data: <html>\n\n")


async def hang_up(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    writer.close()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (refuse, "the server answered with an error (503): the queue is full"),
        (refuse_without_json, "the server answered with an error (502): proxy"),
        (fail_midway, "the engine died"),
        (break_off, "the stream ended before the completion did"),
        (talk_nonsense, "DecodeError"),
        (hang_up, "RemoteProtocolError"),
    ],
)
async def test_failures_say_what_happened(answer: Answer, message: str) -> None:
    async with serving(answer) as url, make_client(url) as client:
        with pytest.raises(BenchError) as failure:
            await stream(client, {"prompt": "p"})
    assert message in str(failure.value)


async def test_nobody_there() -> None:
    async with serving(echo) as url:
        pass
    with pytest.raises(BenchError, match="ConnectError"):
        await run_load(url, [{"prompt": "p"}], 1)


async def test_one_failure_ends_the_others() -> None:
    ended = asyncio.Event()

    async def one_fails(body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if body["prompt"] == "bad":
            await refuse(body, writer)
            return
        writer.write(OK)
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(chunk("a"))
                await writer.drain()
                await asyncio.sleep(0.01)
        ended.set()

    async with serving(one_fails) as url:
        with pytest.raises(BenchError):
            await run_load(url, [{"prompt": "good"}, {"prompt": "bad"}], 2)
        await asyncio.wait_for(ended.wait(), 5)


async def test_events_however_they_are_cut() -> None:
    text = 'data: {"text": "a\u2028b\u0085c\x0cd"}\n\n: comment\nevent: x\ndata:{"n": 2}\n\n'
    whole = (text + "data: [DONE]\n\ndata: not any more\n\n").encode()

    async def parts(size: int) -> AsyncIterator[bytes]:
        for i in range(0, len(whole), size):
            yield whole[i : i + size]

    for size in (1, 2, 7, len(whole)):
        found = [data.decode() async for data in events(parts(size))]
        assert found == ['{"text": "a\u2028b\u0085c\x0cd"}', '{"n": 2}']
