"""Ranks with sockets between them: what one sends all have, however much it is, and nobody waits for one that
is gone."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from support.native_kernels import built_levels
from support.torch_ranks import check_gathers

from nextn.distributed.group import PeerGone
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.pulse import Pulse

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")


def mesh(size: int) -> list[MeshRanks]:
    data: list[list[Any]] = [[None] * size for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        data[a][b], data[b][a] = socket.socketpair()
    pairs = [socket.socketpair() for _ in range(size - 1)]
    signs = [{rank: pair[0] for rank, pair in enumerate(pairs, start=1)}]
    signs += [{0: pair[1]} for pair in pairs]
    return [MeshRanks(rank, data[rank], signs[rank], size, 16) for rank in range(size)]


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[list[MeshRanks]]:
    made = mesh(request.param)
    yield made
    for each in made:
        each.close()


def together(ranks: list[MeshRanks], task: Any) -> list[Any]:
    with ThreadPoolExecutor(len(ranks)) as threads:
        return list(threads.map(task, ranks))


@pytest.mark.parametrize("ranks", [2, 3, 4], indirect=True)
def test_every_rank_has_every_column(ranks: list[MeshRanks]) -> None:
    """Of every dtype, of no rows, of parts that are empty."""
    together(ranks, lambda own: check_gathers(own, "cpu"))
    assert all(own.waited > 0 for own in ranks)


@pytest.mark.parametrize("ranks", [3], indirect=True)
def test_more_than_the_sockets_hold(ranks: list[MeshRanks]) -> None:
    """All send at once: who only sent would wait for ever."""
    want = torch.arange(64 * 30_000, dtype=torch.int32).view(64, 30_000)
    bounds = (0, 9_000, 9_001, 30_000)

    def gather(own: MeshRanks) -> bool:
        whole = torch.zeros_like(want)
        part = slice(*bounds[own.rank : own.rank + 2])
        whole[:, part] = want[:, part]
        own.gather(whole, bounds)
        return torch.equal(whole, want)

    assert together(ranks, gather) == [True] * 3


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize("how", ["closed", "given up"])
def test_who_waits_is_told_that_a_rank_is_gone(ranks: list[MeshRanks], how: str) -> None:
    def run(own: MeshRanks) -> str:
        if own.rank == 2:
            time.sleep(0.05)  # the others wait by then, or come later: both must hold
            if how == "closed":
                own.close()
            else:
                own.give_up("rank 2 has given up")
            return ""
        with pytest.raises(PeerGone) as gone:
            own.gather(torch.zeros(1, 3), range(4))
        return str(gone.value)

    assert together(ranks, run) == ["another rank of this engine has ended"] * 2 + [""]
    assert how == "closed" or str(ranks[2].gone()) == "rank 2 has given up"


@pytest.mark.parametrize("ranks", [3], indirect=True)
@pytest.mark.parametrize(("how", "said"), [("closed", "has ended"), ("silent", "does not answer")])
def test_a_rank_that_gives_no_sign_of_life(ranks: list[MeshRanks], how: str, said: str) -> None:
    lost: list[tuple[int, str]] = []
    noticed = threading.Event()

    def note(*what: Any) -> None:
        lost.append(what)
        noticed.set()

    pulses = [Pulse(ranks[0], note, silent=1.5 if how == "silent" else 60.0)]
    pulses += [Pulse(ranks[1], note, silent=60.0)]
    if how == "closed":
        ranks[2].close()
    assert noticed.wait(30)
    for pulse in pulses:
        pulse.stop()
    assert lost == [(2, said)]
    if how == "silent":
        assert ranks[0].beats()[1]
        assert ranks[1].beats()[0]
