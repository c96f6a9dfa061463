"""Whatever happens to the other end, or between the two: every request ends once, with what came of it."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.transfers import (
    BACKENDS,
    IDENTITY,
    TIMEOUT,
    Bootstrap,
    Decode,
    Network,
    Prefill,
    ends,
    identity,
    prompt_of,
    until,
)

from nextn.disaggregation.checksum import prompt_hash
from nextn.disaggregation.framing import frame_start
from nextn.disaggregation.messages import Begin, Hello, Pages, Ping, Read, Taken, Want
from nextn.disaggregation.remote import Remote

BIG = identity(layers=20, width=256)  # of which a prompt of 3,000 tokens has 30 MB
SHORT = 1.0  # seconds, where a time-out is what is tested
Both = tuple[Prefill, Decode, Bootstrap]


@pytest.fixture(params=BACKENDS)
def patient(request: pytest.FixtureRequest) -> Iterator[Both]:
    with ends(BIG, BIG, request.param) as both:
        yield both


@pytest.fixture(params=BACKENDS)
def hasty(request: pytest.FixtureRequest) -> Iterator[Both]:
    with ends(BIG, BIG, request.param, SHORT) as both:
        yield both


@pytest.fixture
def network(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: list[Network] = []

    def make(prefill: Prefill) -> Network:
        made.append(Network(prefill.source.port))
        return made[-1]

    yield make
    for each in made:
        each.close()


def begin(prefill: Prefill, decode: Decode, port: Bootstrap, through: int, n: int = 3000) -> None:
    """A transfer in the middle: it has begun and is not at its end."""
    port.routes[1] = "127.0.0.1", through
    prefill.offer("p", 1, prompt_of(1, n))
    prefill.source.committed("p", n // 2)
    decode.want("d", port.remote(1), 0, prompt_of(1, n))
    until(lambda: decode.slots["d"] > 0, prefill, decode)


def both_ended(prefill: Prefill, decode: Decode, rid: str = "p") -> bool:
    return "d" in decode.ended and rid in prefill.errors()


def test_a_cut_connection(patient: Both, network: Any) -> None:
    prefill, decode, port = patient
    net = network(prefill)
    begin(prefill, decode, port, net.port)
    net.cut()
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert 0 < decode.ended["d"].slots <= 1500
    assert any(word in str(decode.ended["d"].error) for word in ("closed", "Broken pipe", "reset"))
    assert "the connection to the decode server ended" in str(prefill.errors()["p"])
    again(prefill, decode, port)


def again(prefill: Prefill, decode: Decode, port: Bootstrap) -> None:
    """The same room and names, once more: it works, and gets nothing of what was before."""
    prefill.given.clear()
    decode.forget("d")
    port.routes[1] = "127.0.0.1", prefill.source.port
    prefill.whole("p", 1, 50)
    decode.want("d", port.remote(1), 8, prompt_of(1, 50))
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert decode.ended["d"] == ("d", 50, 0, None)
    assert prefill.errors() == {"p": None}


@pytest.mark.parametrize(
    ("way", "at"),
    [(way, at) for way in ("down", "up") for at in (0, 10, 30, 150, 250)]
    + [("down", at) for at in (400_000, 2_000_000)],
)
def test_a_changed_byte(network: Any, way: str, at: int) -> None:
    with ends(BIG, BIG) as (prefill, decode, port):
        change_a_byte(prefill, decode, port, network(prefill), way, at)


def change_a_byte(prefill: Prefill, decode: Decode, port: Bootstrap, net: Network, way: str, at: int) -> None:
    net.corrupt_at[way] = at
    port.routes[1] = "127.0.0.1", net.port
    prefill.whole("p", 1, 3000)
    decode.want("d", port.remote(1), 0, prompt_of(1, 3000))
    until(lambda: "d" in decode.ended, prefill, decode)
    if prefill.source._transfers:
        until(lambda: bool(prefill.given), prefill, decode)
    if net.passed[way] > at:
        assert decode.ended["d"].error is not None or prefill.errors()["p"] is not None
    if way == "down":
        assert decode.ended["d"].error is not None
        assert decode.ended["d"].slots * 20 * 256 * 2 <= at


def test_a_network_that_stalls(hasty: Both, network: Any) -> None:
    prefill, decode, port = hasty
    net = network(prefill)
    begin(prefill, decode, port, net.port)
    net.stalled = True
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert "silent" in str(decode.ended["d"].error)
    assert "silent" in str(prefill.errors()["p"])


def test_a_room_that_is_computed_for_long_is_waited_for(hasty: Both) -> None:
    prefill, decode, port = hasty
    port.routes[1] = "127.0.0.1", prefill.source.port
    prefill.offer("p", 1, prompt_of(1, 30))
    decode.want("d", port.remote(1), 0, prompt_of(1, 30))
    end = time.monotonic() + 3 * SHORT
    until(lambda: time.monotonic() > end, prefill, decode)
    assert not decode.ended
    assert not prefill.given
    prefill.source.finished("p", 30, 0)
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert decode.ended["d"].error is None


def test_a_sink_whose_engine_is_busy_is_waited_for(hasty: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.disaggregation.sink.UNDELIVERED", 2 << 20)
    prefill, decode, port = hasty
    port.routes[1] = "127.0.0.1", prefill.source.port
    prefill.whole("p", 1, 3000)
    decode.want("d", port.remote(1), 0, prompt_of(1, 3000))
    until(lambda: decode.sink.paused, prefill)
    end = time.monotonic() + 3 * SHORT
    until(lambda: time.monotonic() > end, prefill)
    assert not prefill.given
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert decode.ended["d"].error is None


def test_rooms_that_nobody_knows(hasty: Both) -> None:
    prefill, decode, port = hasty
    decode.want("no route", port.remote(1), 4, prompt_of(1, 30))
    port.routes[2] = "127.0.0.1", prefill.source.port
    decode.want("no offer", port.remote(2), 0, prompt_of(2, 30))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        decode.want("silent port", Remote(3, "127.0.0.1", silent.getsockname()[1]), 0, prompt_of(3, 30))
        decode.want("no such host", Remote(4, "host.invalid", 1), 0, prompt_of(4, 30))
        port.routes[5] = silent.getsockname()
        decode.want("silent engine", port.remote(5), 0, prompt_of(5, 30))
        with socket.create_server(("127.0.0.1", 0)) as gone:
            port.routes[6] = gone.getsockname()
        decode.want("no engine", port.remote(6), 0, prompt_of(6, 30))
        until(lambda: len(decode.ended) == 6, prefill, decode)
    assert all(each.error for each in decode.ended.values())
    assert decode.ended["no route"].slots == 4
    assert "unknown" in str(decode.ended["no route"].error)
    assert "unknown" in str(decode.ended["no offer"].error)
    prefill.whole("p", 9, 30)
    until(lambda: bool(prefill.given), prefill)
    assert "no decode server requested" in str(prefill.errors()["p"])


def test_a_room_that_is_asked_for_twice(patient: Both) -> None:
    prefill, decode, port = patient
    begin(prefill, decode, port, prefill.source.port)
    decode.want("second", port.remote(1), 0, prompt_of(1, 3000))
    until(lambda: "second" in decode.ended, prefill, decode)
    assert "twice" in str(decode.ended["second"].error)
    prefill.source.finished("p", 3000, 0)
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert decode.ended["d"].error is None
    prefill.offer("q", 2, [1])
    with pytest.raises(ValueError, match="in use"):
        prefill.offer("r", 2, [1])


def test_an_old_connection_that_closes_after_its_successor_asked() -> None:
    """A decode server that was started again counts its transfers from 1 again."""
    with ends() as (prefill, decode, port):
        source, prompt = prefill.source, prompt_of(1, 30)
        for rid, room in (("p", 1), ("q", 2)):
            prefill.offer(rid, room, prompt)
        with socket.create_connection(("127.0.0.1", source.port)) as old:
            want = Want(1, 1, 30, prompt_hash(prompt))
            old.sendall(b"".join(map(frame_start, (Hello(IDENTITY, "tcp", TIMEOUT), want, Begin(1, 0)))))
            until(lambda: len(source._transfers) == 1, prefill)
            port.routes[2] = "127.0.0.1", source.port
            decode.want("d", port.remote(2), 0, prompt)
            until(lambda: len(source._transfers) == 2, prefill, decode)
            assert {number for _, number in source._transfers} == {1}
        until(lambda: "p" in prefill.errors(), prefill, decode)
        source.finished("q", 30, 0)
        until(lambda: both_ended(prefill, decode, "q"), prefill, decode)
        assert decode.ended["d"].error is None
        assert prefill.errors()["q"] is None


def test_another_prompt(patient: Both) -> None:
    prefill, decode, port = patient
    prefill.whole("p", 1, 30)
    port.routes[1] = "127.0.0.1", prefill.source.port
    decode.want("d", port.remote(1), 0, prompt_of(2, 30))
    until(lambda: "d" in decode.ended, prefill, decode)
    assert "another prompt" in str(decode.ended["d"].error)


def test_servers_that_differ() -> None:
    other = identity(page_size=8, version="2")
    with ends(decode=other) as (prefill, decode, port):
        prefill.whole("p", 1, 30)
        port.routes[1] = "127.0.0.1", prefill.source.port
        decode.want("d", port.remote(1), 0, prompt_of(1, 30))
        until(lambda: "d" in decode.ended, prefill, decode)
        error = str(decode.ended["d"].error)
        assert "version is 2 on the decode server and 1 on" in error
        assert "page_size is 8 on the decode server and 4 on" in error
        assert not prefill.given


def test_a_cancelled_request(patient: Both) -> None:
    prefill, decode, port = patient
    begin(prefill, decode, port, prefill.source.port)
    decode.sink.cancel("d")
    decode.sink.cancel("d")
    until(lambda: bool(prefill.given), prefill, decode)
    assert "cancelled" in str(prefill.errors()["p"])
    assert not decode.ended
    again(prefill, decode, port)


def test_a_request_that_is_cancelled_and_asked_for_again_at_once(patient: Both) -> None:
    """Pages of the first one are under way still."""
    prefill, decode, port = patient
    begin(prefill, decode, port, prefill.source.port)
    prefill.source.finished("p", 3000, 0)
    decode.sink.cancel("d")
    prefill.source.withdraw("p")
    again(prefill, decode, port)


def test_a_withdrawn_request(patient: Both) -> None:
    prefill, decode, port = patient
    begin(prefill, decode, port, prefill.source.port)
    piece = prefill.source.wanted()
    prefill.source.withdraw("p")
    prefill.source.withdraw("p")
    if piece is not None:
        prefill.source.put(piece, prefill.pools["p"][:, : 4 * piece.pages].contiguous())
    until(lambda: "d" in decode.ended, prefill, decode)
    assert "ended the request" in str(decode.ended["d"].error)
    assert not prefill.given
    until(lambda: set(prefill.source._turns.in_flight.values()) == {0}, prefill, decode)
    again(prefill, decode, port)


@pytest.mark.parametrize("which", ["source", "sink"])
def test_a_thread_that_fails(patient: Both, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    prefill, decode, port = patient
    begin(prefill, decode, port, prefill.source.port)
    end = prefill.source if which == "source" else decode.sink
    monkeypatch.setattr(end, "tick", lambda now: 1 // 0)
    until(lambda: both_ended(prefill, decode), prefill, decode)
    prefill.offer("later", 5, [1])
    prefill.source.finished("later", 1, 0)
    decode.want("later", port.remote(5), 0, [1])
    if which == "source":
        until(lambda: "later" in prefill.errors(), prefill, decode)
        assert [each for each in prefill.errors().values() if "ZeroDivisionError" not in str(each)] == []
        assert prefill.source.wanted() is None
        decode.sink.cancel("later")
    else:
        until(lambda: "later" in decode.ended, prefill, decode)
        assert [each for each in decode.ended.values() if "ZeroDivisionError" not in str(each.error)] == []


def rubbish(seed: int) -> bytes:
    rng = random.Random(seed)
    hello = frame_start(Hello(BIG, rng.choice(["tcp", "shm", "nixl"]), 5.0, "nobody", b"key"))
    good = [hello, frame_start(Want(1, 1, 30, b"")), frame_start(Ping()), frame_start(Taken(1)),
            frame_start(Pages(1, 0, 1, 4, 0), 1 << 31), frame_start(Pages(1, 0, 1, 4, 0), 81920),
            frame_start(Pages(1, 0, 1, 4, 0, 1)), frame_start(Read(1))]  # fmt: skip
    kinds = [
        lambda: rng.randbytes(rng.randrange(1, 5000)),
        lambda: b"GET / HTTP/1.1\r\n\r\n",
        lambda: b"".join(rng.choices(good, k=5)),
        lambda: hello + b"".join(rng.choices(good[1:], k=5)),
        lambda: hello + rng.randbytes(100),
        lambda: hello[: rng.randrange(len(hello))] + rng.randbytes(50),
    ]
    return kinds[seed % len(kinds)]()


def test_rubbish(hasty: Both) -> None:
    """To both ends; others are served all the while."""
    prefill, decode, port = hasty
    begin(prefill, decode, port, prefill.source.port)
    for seed in range(48):
        with socket.create_connection(("127.0.0.1", prefill.source.port)) as stranger:
            stranger.settimeout(20)
            try:
                stranger.sendall(rubbish(seed))
                stranger.shutdown(socket.SHUT_WR)
                while stranger.recv(65536):
                    pass
            except ConnectionError:
                pass
    for seed in range(24):
        with socket.create_server(("127.0.0.1", 0)) as stranger:
            port.routes[100 + seed] = stranger.getsockname()
            decode.want(f"r{seed}", port.remote(100 + seed), 0, prompt_of(seed, 30))
            stranger.settimeout(20)
            end, _ = stranger.accept()
            with end:
                end.sendall(rubbish(seed))
                until(lambda name=f"r{seed}": name in decode.ended, prefill, decode)  # type: ignore[misc]
    assert all(each.error for each in decode.ended.values())
    prefill.source.finished("p", 3000, 0)
    until(lambda: both_ended(prefill, decode), prefill, decode)
    assert decode.ended["d"].error is None


def test_many_strangers(hasty: Both) -> None:
    prefill, decode, port = hasty
    with contextlib.ExitStack() as strangers:
        for _ in range(300):
            strangers.enter_context(socket.create_connection(("127.0.0.1", prefill.source.port)))
            assert len(prefill.source.connections) <= 256
        until(lambda: not prefill.source.connections, prefill)  # they said nothing for too long
        decode.slots["d"] = 0
        again(prefill, decode, port)


SINK = """
import sys
from support.transfers import BIG_ARGS, Decode, Remote, identity, prompt_of, until
decode = Decode(identity(**BIG_ARGS), sys.argv[3], float(sys.argv[2]))
decode.want("d", Remote(1, "127.0.0.1", int(sys.argv[1])), 0, prompt_of(1, 3000))
until(lambda: decode.slots["d"] > 0, decode)
print("begun", flush=True)
until(lambda: False, decode)
"""


def test_a_sink_that_is_killed_or_stopped(hasty: Both) -> None:
    """Stopped where pages are in shared memory."""
    prefill, _, port = hasty
    sign = signal.SIGSTOP if prefill.source.backend == "shm" else signal.SIGKILL
    port.routes[1] = "127.0.0.1", prefill.source.port
    prefill.offer("p", 1, prompt_of(1, 3000))
    prefill.source.committed("p", 1500)
    tests = Path(__file__).parents[2]
    there = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    command = [sys.executable, "-c", SINK, str(port.port), str(SHORT), prefill.source.backend]
    with subprocess.Popen(command, env=there, stdout=subprocess.PIPE, text=True) as sink:
        assert sink.stdout is not None
        until(lambda: bool(prefill.source.stats.pages), prefill)
        assert sink.stdout.readline() == "begun\n"
        sink.send_signal(sign)
        until(lambda: bool(prefill.given), prefill)
        sink.kill()
    assert "the connection to the decode server ended" in str(prefill.errors()["p"])
