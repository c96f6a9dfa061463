"""The HTTP process's end of the socket to an engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from nextn.server.process.channel import MOST, Channel
from nextn.server.process.messages import Done, FromEngine, Stop, decode_to_engine, encode


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[str, zmq.Socket[bytes]]]:
    """An address, and the engine's end."""
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)
        yield f"ipc://{tmp_path}/engine", socket


async def until(count: int, heard: list[FromEngine]) -> None:
    deadline = time.monotonic() + 30
    while len(heard) < count:
        assert time.monotonic() < deadline
        await asyncio.sleep(0.001)


async def test_messages_come_in_order(engine: tuple[str, zmq.Socket[bytes]]) -> None:
    """Also those that were there before anybody listened, and more than are taken in one go."""
    address, socket = engine
    channel = Channel(address)
    socket.connect(address)
    sent: list[FromEngine] = [Done(call, None) for call in range(3 * MOST)]
    for message in sent[:MOST]:
        socket.send(encode(message))
    heard: list[FromEngine] = []
    channel.listen(heard.append)
    await until(MOST, heard)
    for message in sent[MOST:]:
        socket.send(encode(message))
    await until(len(sent), heard)
    assert heard == sent
    channel.close()


async def test_one_at_a_time(engine: tuple[str, zmq.Socket[bytes]]) -> None:
    """Who becomes deaf amid messages leaves the others for whoever listens next."""
    address, socket = engine
    channel = Channel(address)
    socket.connect(address)
    sent: list[FromEngine] = [Done(call, None) for call in range(3)]
    for message in sent:
        socket.send(encode(message))
    heard: list[FromEngine] = []

    def once(message: FromEngine) -> None:
        channel.stop_listening()
        heard.append(message)

    for count in (1, 2, 3):
        channel.listen(once)
        await until(count, heard)
    assert heard == sent
    channel.close()


async def test_answers_amid_sending(engine: tuple[str, zmq.Socket[bytes]]) -> None:
    address, socket = engine
    channel = Channel(address)
    socket.connect(address)
    heard: list[FromEngine] = []
    channel.listen(heard.append)
    socket.send(encode(Done(-1, None)))
    await until(1, heard)
    for call in range(200):
        channel.send(encode(Stop()))
        assert decode_to_engine(await asyncio.to_thread(socket.recv)) == Stop()
        socket.send(encode(Done(call, None)))
    await until(201, heard)
    channel.close()


async def test_an_engine_that_is_gone(engine: tuple[str, zmq.Socket[bytes]]) -> None:
    """Its requests are failed elsewhere."""
    address, socket = engine
    channel = Channel(address)
    socket.connect(address)
    heard: list[FromEngine] = []
    channel.listen(heard.append)
    socket.send(encode(Done(0, None)))
    await until(1, heard)
    socket.close()
    for _ in range(20):
        channel.send(encode(Stop()))
        await asyncio.sleep(0.001)
    channel.close()


async def test_what_a_listener_raises(engine: tuple[str, zmq.Socket[bytes]]) -> None:
    address, socket = engine
    channel = Channel(address)
    socket.connect(address)

    def fails(message: FromEngine) -> None:
        raise RuntimeError("a mistake")

    failed = channel.listen(fails)
    socket.send(encode(Done(0, None)))
    with pytest.raises(RuntimeError, match="a mistake"):
        await asyncio.wait_for(failed, 30)
    channel.close()
