"""Pages go from pool to pool: where they land nothing else is touched, and only what is proven counts."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import pairwise
from threading import Lock

import numpy as np
import pytest
import torch
from support.transfers import TIMEOUT, Bootstrap, Network, identity, prompt_of, until
from torch import Tensor

from nextn.disaggregation.buffers import Buffers
from nextn.disaggregation.framing import TAIL
from nextn.disaggregation.landing import CHUNK, Arriving, Landing
from nextn.disaggregation.page_copies import PageCopies
from nextn.disaggregation.sink import Ended, PageSink
from nextn.disaggregation.source import OfferEnd, PageSource

WHAT = identity(layers=5, page_size=16, width=288)
TOKENS = 5_000
PAGES = -(-TOKENS // 16)
MARK = 77.0


def table(seed: int) -> list[int]:
    return torch.randperm(PAGES + 9, generator=torch.Generator().manual_seed(seed))[:PAGES].tolist()


class Pools:
    """Driven as agents do. sent, landed: [layers, pages, entries]."""

    def __init__(self, backend: str) -> None:
        self.port = Bootstrap()
        self.source, self.sink = (
            PageSource(WHAT, backend, "127.0.0.1", TIMEOUT),
            PageSink(WHAT, backend, TIMEOUT),
        )
        self.network = Network(self.source.port)
        shape = WHAT.layers, (PAGES + 9) * WHAT.page_size, WHAT.width
        values = torch.randint(-99, 99, shape, generator=torch.Generator().manual_seed(3))
        self._sent, self._landed = values.to(torch.bfloat16), torch.full(shape, MARK, dtype=torch.bfloat16)
        self._out = PageCopies(self._sent, WHAT.page_size)
        self.landing = Landing(PageCopies(self._landed, WHAT.page_size), table(2))
        self.ended: list[Ended] = []
        self.given: list[OfferEnd] = []
        self.most = 1000  # pieces
        self.port.routes[1] = "127.0.0.1", self.network.port
        self.source.offer("p", 1, prompt_of(1, TOKENS))
        self.source.finished("p", TOKENS, 0)
        self.sink.want("d", self.port.remote(1), prompt_of(1, TOKENS))

    def pump(self) -> None:
        self.source.clear()
        while self.most > 0 and (piece := self.source.wanted()) is not None:
            self.most -= 1
            self.source.copy(piece, self._out, table(1)[piece.first_page : piece.first_page + piece.pages])
        self.sink.clear()
        for event in self.sink.poll():
            assert isinstance(event, Ended)
            self.ended.append(event)
        self.given += self.source.poll()

    def fileno(self) -> int:
        return self.source.fileno()

    @property
    def sent(self) -> Tensor:
        return self._sent.view(WHAT.layers, PAGES + 9, -1)[:, table(1)]

    @property
    def landed(self) -> Tensor:
        return self._landed.view(WHAT.layers, PAGES + 9, -1)

    def close(self) -> None:
        self.sink.close()
        self.source.close()
        self.network.close()
        self.port.close()


@pytest.fixture(params=["tcp", "shm"])
def pools(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Pools]:
    monkeypatch.setattr("nextn.disaggregation.layout.PIECE", 1 << 20)
    made = Pools(request.param)
    yield made
    made.close()


def wait(pools: Pools) -> None:
    until(lambda: bool(pools.ended), pools)


@pytest.mark.parametrize("native", ["both", "source", "sink"])
@pytest.mark.parametrize("have", [0, 7])
def test_from_pool_to_pool(pools: Pools, native: str, have: int) -> None:
    """Native kernels and plain numpy are the two sides of one protocol."""
    if native == "source":
        pools.landing.copies.native = None
    if native == "sink":
        pools._out.native = None
    pools.sink.begin("d", have * 16, pools.landing)
    wait(pools)
    assert pools.ended == [("d", TOKENS, 0, None)]
    assert torch.equal(pools.landed[:, table(2)[have:]], pools.sent[:, have:])
    others = set(range(PAGES + 9)) - set(table(2)[have:])
    assert bool((pools.landed[:, sorted(others)] == MARK).all())
    until(lambda: [each.error for each in pools.given] == [None], pools)
    assert pools.sink.stats.pages == pools.source.stats.pages == PAGES - have


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("at", [500, 700_000, 1_000_000, 3_000_000])
def test_a_changed_byte(pools: Pools, native: bool, at: int) -> None:
    """What comes before it counts, and nothing after it."""
    if pools.sink.backend == "shm":
        pytest.skip("pages do not go through the network")
    if not native:
        pools.landing.copies.native = None
    pools.network.corrupt_at["down"] = at
    pools.sink.begin("d", 0, pools.landing)
    wait(pools)
    slots, error = pools.ended[0].slots, pools.ended[0].error
    assert error is not None
    page = WHAT.layers * WHAT.page_size * WHAT.width * 2
    assert slots // 16 * page <= at < slots // 16 * page + (2 << 20)
    assert torch.equal(pools.landed[:, table(2)[: slots // 16]], pools.sent[:, : slots // 16])


def test_nothing_lands_after_cancel(pools: Pools) -> None:
    """Then the pages may be another request's."""
    pools.most = 5
    pools.sink.begin("d", 0, pools.landing)
    until(lambda: pools.sink.stats.pages > 0, pools)
    pools.sink.cancel("d")
    pools._landed.fill_(MARK)
    until(lambda: bool(pools.given), pools)
    pools.source.offer("q", 2, prompt_of(2, 16))  # what was under way is there before it
    pools.source.finished("q", 16, 0)
    pools.port.routes[2] = "127.0.0.1", pools.network.port
    pools.sink.want("e", pools.port.remote(2), prompt_of(2, 16))
    pools.sink.begin("e", 16)
    wait(pools)
    assert pools.ended == [("e", 16, 0, None)]
    assert bool((pools.landed == MARK).all())


@pytest.mark.parametrize("fed", [0, 1, 300, 20_000])
@pytest.mark.parametrize("size", [255, 4097, 100_001])
def test_a_piece_arrives_in_parts_of_any_size(fed: int, size: int) -> None:
    """fed: bytes that were read before the socket is given to the piece. size: bytes of each part that
    arrives later, after two parts of one byte."""
    pages, shape = 3, (WHAT.layers, 8 * WHAT.page_size, WHAT.width)
    sent = torch.randint(-99, 99, shape, generator=torch.Generator().manual_seed(4)).to(torch.bfloat16)
    landed = torch.full(shape, MARK, dtype=torch.bfloat16)
    copies = PageCopies(landed, WHAT.page_size)
    if copies.sockets is None:
        pytest.skip("needs the native kernels")
    data = np.empty(pages * copies.page_bytes, np.uint8)
    found = PageCopies(sent, WHAT.page_size).read([4, 1, 6], data)
    stream = data.tobytes() + found.to_bytes(TAIL, "big")
    chunk = Buffers(CHUNK).take(CHUNK)
    body = Arriving(Landing(copies, [9, 2, 7, 0]), 1, pages, chunk, Lock(), lambda: True)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        body.feed(memoryview(stream[:fed]))
        for begin, end in pairwise([fed, fed + 1, *range(fed + 2, len(stream), size), len(stream)]):
            theirs.sendall(stream[begin:end])
            assert body.fill(ours) == end - begin
        assert body.left == 0
        assert (
            ours.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT) == 1
        )  # the next message wakes the thread
    assert body.found == body.expected == found
    shaped = landed.view(WHAT.layers, 8, -1)
    assert torch.equal(shaped[:, [2, 7, 0]], sent.view(WHAT.layers, 8, -1)[:, [4, 1, 6]])
    assert bool((shaped[:, [1, 3, 4, 5, 6]] == MARK).all())
