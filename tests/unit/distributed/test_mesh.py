"""Ranks with sockets between them: what one sends all have, however much it is, and nobody waits for one that
is gone."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from support.meshes import mesh
from support.native_kernels import built_levels
from support.torch_ranks import check_gathers

from nextn.distributed.group import PeerGone
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.pulse import Pulse

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")


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


@pytest.mark.parametrize("each", [1, 300_000])
@pytest.mark.parametrize("ranks", [2, 4], indirect=True)
def test_what_goes_to_one_rank_only(ranks: list[MeshRanks], each: int) -> None:
    """Also nothing, and more than the sockets hold."""

    def size(source: int, to: int) -> int:
        return 0 if source == to or (source, to) == (1, 0) else each * (1 + source + 2 * to)

    def swap(own: MeshRanks) -> list[tuple[int, int]]:
        them = range(len(ranks))
        out = [np.full(size(own.rank, rank), 10 * own.rank + rank, np.uint8) for rank in them]
        found = [own.swap(out, [size(rank, own.rank) for rank in them]) for _ in range(3)][-1]
        assert all((part == 10 * rank + own.rank).all() for rank, part in enumerate(found))
        return [(len(part), size(rank, own.rank)) for rank, part in enumerate(found)]

    assert all(found == want for sizes in together(ranks, swap) for found, want in sizes)


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
