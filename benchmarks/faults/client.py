"""A client on plain sockets that can misbehave: read slowly, disconnect anywhere, send anything.

answer = await ask(address, {"prompt": "x", "stream": True}, leave_after=3)
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import dataclass
from typing import Any

Address = tuple[str, int]
SECONDS = 180.0  # an answer that takes longer counts as a hang


@dataclass
class Answer:
    """`ended`: whole, error (an error answer, or an error event in a stream), left (this client
    disconnected), or broken (the connection ended before the answer did)."""

    ended: str = "broken"
    status: int = 0
    code: str | None = None  # the error's code
    text: str = ""
    events: int = 0
    first: float = 0.0  # seconds from sending to the first event, or to the whole answer
    seconds: float = 0.0


class Hung(AssertionError):
    """No answer arrived in time."""


async def ask(
    address: Address,
    body: dict[str, Any] | bytes,
    path: str = "/v1/completions",
    leave_after: int | None = None,  # events after which the client disconnects; 0: after sending the body
    send_only: int | None = None,  # bytes of the request that are sent; then the client disconnects
    pause: float = 0.0,  # seconds before each read
    piece: int = 65536,  # maximum bytes of a read
    headers: str = "",  # more header lines
) -> Answer:
    """Sends one request on a new connection. Raises Hung, and OSError if there is no server."""
    answer, loop = Answer(), asyncio.get_running_loop()
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: faults\r\nconnection: close\r\n{headers}"
    head += f"content-length: {len(data)}\r\n\r\n"
    began = loop.time()
    # The limit is small, so that unread data fills the sockets and then the server.
    reader, writer = await asyncio.open_connection(*address, limit=65536)
    try:
        await asyncio.wait_for(
            talk(
                reader,
                writer,
                (head.encode() + data)[:send_only],
                answer,
                leave_after,
                send_only,
                pause,
                piece,
            ),
            SECONDS,
        )
    except asyncio.TimeoutError as e:
        raise Hung(f"{path} {data[:200]!r}: no end after {SECONDS:.0f} s, {answer}") from e
    except OSError:
        pass  # a reset: `ended` stays broken
    finally:
        writer.transport.abort()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        answer.seconds = loop.time() - began
    return answer


async def talk(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    request: bytes,
    answer: Answer,
    leave_after: int | None,
    send_only: int | None,
    pause: float,
    piece: int,
) -> None:
    began = asyncio.get_running_loop().time()
    writer.write(request)
    await writer.drain()
    if send_only is not None or leave_after == 0:
        await asyncio.sleep(pause)
        answer.ended = "left"
        return
    come = bytearray()
    while True:
        if pause:
            await asyncio.sleep(pause)
        part = await reader.read(piece)
        come += part
        if part and not answer.first:
            answer.first = asyncio.get_running_loop().time() - began
        if not part:
            break
        if leave_after is not None:
            answer.events = come.count(b"data: ")
            if answer.events >= leave_after:
                answer.ended = "left"
                return
    understand(bytes(come), answer)


def understand(come: bytes, answer: Answer) -> None:
    """Parses an HTTP answer, which can be incomplete."""
    head, found, rest = come.partition(b"\r\n\r\n")
    if not found:
        return
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    answer.status = int(first.split()[1])
    if "content-length" in headers:
        if len(rest) == int(headers["content-length"]):
            whole(rest, answer)
        return
    stream(*dechunked(rest), answer)


def whole(body: bytes, answer: Answer) -> None:
    data = json.loads(body)
    if answer.status == 200:
        answer.ended, answer.text = "whole", text_of(data)
    else:
        answer.ended, answer.code = "error", data["error"]["code"]


def stream(body: bytes, complete: bool, answer: Answer) -> None:
    events = [line[6:] for line in body.split(b"\n\n") if line.startswith(b"data: ")]
    answer.events = len(events)
    if not complete or not events or events[-1] != b"[DONE]":
        return
    answer.ended = "whole"
    for event in events[:-1]:
        chunk = json.loads(event)
        if "error" in chunk:
            answer.ended, answer.code = "error", chunk["error"]["code"]
        else:
            answer.text += text_of(chunk)


def text_of(data: Any) -> str:
    """The text of an answer in OpenAI's form; "" for other answers, whose texts are not compared."""
    if not isinstance(data, dict):
        return ""
    choices = data.get("choices", [])
    return "".join(choice.get("text") or "" for choice in choices)


def dechunked(body: bytes) -> tuple[bytes, bool]:
    """Returns the joined parts of a chunked body, and whether the body is complete."""
    parts = []
    while True:
        size, found, body = body.partition(b"\r\n")
        if not found:
            return b"".join(parts), False
        length = int(size, 16)
        if length == 0:
            return b"".join(parts), True
        parts.append(body[:length])
        body = body[length + 2 :]
