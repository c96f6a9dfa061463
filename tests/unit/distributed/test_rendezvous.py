"""Ranks find each other; those that do not belong together are told why, and nobody waits for ever."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from nextn.distributed import rendezvous
from nextn.distributed.rendezvous import Host, Met, Refused, join, listen
from nextn.distributed.wire import receive, send

FACTS = {"--page-size": "16", "the model": "abc"}
ANY = ("127.0.0.1", 0)


def close(*met: Met) -> None:
    for each in met:
        for end in (*each.work.values(), *each.signs.values(), *each.data, *each.nodes):
            if end is not None:
                end.close()


def come(
    host: Host, rank: int, size: int, facts: Any = FACTS, timeout: float = 30, offer: Any = None
) -> Future[Met]:
    found: Future[Met] = Future()

    def run() -> None:
        try:
            found.set_result(join(host.address, rank, size, facts, timeout, offer=offer))
        except BaseException as e:
            found.set_exception(e)

    threading.Thread(target=run, daemon=True).start()
    return found


@pytest.mark.parametrize("size", [2, 3, 5])
def test_all_find_all(size: int) -> None:
    host = Host(ANY, size, FACTS)
    coming = [come(host, rank, size) for rank in range(size - 1, 0, -1)]
    met = [host.meet(30), *(each.result(30) for each in reversed(coming))]
    for rank in range(1, size):
        send(met[0].work[rank], f"to {rank}")
        assert receive(met[rank].work[0]) == f"to {rank}"
        met[rank].signs[0].send(b"x")
        assert met[0].signs[rank].recv(1) == b"x"
    for a in range(size):
        for b in range(size):
            if a != b:
                met[a].data[b].send(bytes([a]))  # type: ignore[union-attr]
                assert met[b].data[a].recv(1) == bytes([a])  # type: ignore[union-attr]
    close(*met)


@pytest.mark.parametrize("size", [2, 3])
def test_what_ranks_have_of_their_own(size: int) -> None:
    """All know what rank 0 makes of it; or why it cannot be."""

    def agree(offers: Any) -> str:
        if size == 2:
            raise ValueError("rank 1 has too little")
        return " ".join(f"{rank}: {offers[rank]}" for rank in sorted(offers))

    host = Host(ANY, size, FACTS)
    coming = [come(host, rank, size, offer=[rank]) for rank in range(1, size)]
    if size == 2:
        with pytest.raises(ValueError, match="too little"):
            host.meet(30, agree=agree)
        with pytest.raises(Refused, match="too little"):
            coming[0].result(30)
        return
    met = [host.meet(30, agree=agree), *(each.result(30) for each in coming)]
    assert [each.agreed for each in met] == ["1: [1] 2: [2]"] * size
    close(*met)


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({**FACTS, "--page-size": "32"}, "--page-size is 16 on rank 0 and 32 on rank 1"),
        ({**FACTS, "the model": "xyz"}, "the model is abc on rank 0 and xyz on rank 1"),
        ({"the model": "abc"}, "--page-size is 16 on rank 0 and none on rank 1"),
    ],
)
def test_ranks_that_differ_are_told_how(facts: dict[str, str], said: str) -> None:
    host = Host(ANY, 3, FACTS)
    other = come(host, 2, 3)
    wrong = come(host, 1, 3, facts)
    with pytest.raises(ValueError, match=said):
        host.meet(30)
    with pytest.raises(Refused, match=said):
        wrong.result(30)
    with pytest.raises((Refused, OSError)):  # whether it had come by then or not
        other.result(30)


def test_a_rank_too_many() -> None:
    host = Host(ANY, 2, FACTS)
    other = come(host, 2, 3)
    with pytest.raises(ValueError, match="rank 2 has come, and there are 2: --nnodes or --tp-size differ"):
        host.meet(30)
    with pytest.raises(Refused):
        other.result(30)


def test_the_same_rank_twice() -> None:
    host = Host(ANY, 3, FACTS)
    first, answer = come(host, 1, 3), ThreadPoolExecutor(1).submit(host.meet, 30)
    until(lambda: 1 in host._ranks)
    with pytest.raises(Refused, match="rank 1 is here already: two nodes have the same --node-rank"):
        come(host, 1, 3).result(30)
    met = [come(host, 2, 3).result(30), first.result(30), answer.result(30)]
    assert set(met[2].work) == {1, 2}
    close(*met)


def test_a_rank_that_ends_while_others_are_waited_for_may_come_again() -> None:
    host = Host(ANY, 3, FACTS)
    answer = ThreadPoolExecutor(1).submit(host.meet, 30)
    with socket.create_connection(host.address) as early:
        hello = {"kind": "work", "word": "early", "rank": 1, "name": "rank 1", "facts": FACTS}
        hello |= {"host": "127.0.0.1", "port": 1}
        rendezvous._send(early, hello)
        until(lambda: 1 in host._ranks)
    found = [come(host, rank, 3) for rank in (1, 2)]
    met = [answer.result(30), *(each.result(30) for each in found)]
    assert set(met[0].work) == {1, 2}
    close(*met)


@pytest.mark.parametrize(
    "words", [b"GET / HTTP/1.1\r\n\r\n", b"\0\0\0\5hello", b"\0\0\0\2[]", b'\0\0\0\x10{"kind": "evil"}']
)
def test_who_is_no_rank_is_left_alone(words: bytes, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(ANY, 2, FACTS)
    with socket.create_connection(host.address) as stranger:
        stranger.sendall(words)
        other = come(host, 1, 2)
        close(host.meet(30), other.result(30))
        with suppress(ConnectionResetError):
            assert stranger.recv(1) == b""
    assert "is no rank of nextn" in caplog.text


def test_nobody_comes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(rendezvous, "TELL_EVERY", 0.0)
    caplog.set_level("INFO")
    host = Host(ANY, 4, FACTS)
    address = host.address
    here = come(host, 2, 4)
    with pytest.raises(TimeoutError, match=r"waited 2 s for rank 1, rank 3 at 127\.0\.0\.1:\d+; start every"):
        host.meet(2)
    with pytest.raises(Refused, match="rank 1, rank 3"):
        here.result(30)
    assert "rank 0 waits for rank 1, rank 3 at" in caplog.text
    with pytest.raises(TimeoutError, match=r"rank 1 has found no rank 0 at 127\.0\.0\.1:\d+ within 0.3 s"):
        join(address, 1, 4, FACTS, 0.3)
    assert "rank 1 waits for rank 0" in caplog.text


def test_rank_0_ends_while_others_wait() -> None:
    host = Host(ANY, 3, FACTS)

    def ended() -> None:
        if 1 in host._ranks:
            raise KeyboardInterrupt

    other = come(host, 1, 3)
    with pytest.raises(KeyboardInterrupt):
        host.meet(30, ended)
    with pytest.raises((Refused, OSError)):
        other.result(30)


def test_addresses_where_nobody_can_listen() -> None:
    with listen(*ANY) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"127.0.0.1:{port} is taken; give another --dist-init-addr"):
            listen("127.0.0.1", port)
    with pytest.raises(OSError, match=r"192\.0\.2\.1:5 is no address of this machine"):
        listen("192.0.2.1", 5)
    with pytest.raises(OSError, match="no-such-host"):
        listen("no-such-host.invalid", 5)


def until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
