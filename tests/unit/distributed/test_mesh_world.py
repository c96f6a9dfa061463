"""Ranks that share experts, with sockets between them: steps, areas, and a rank that is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

import numpy as np
import pytest
from support.meshes import mesh
from support.native_kernels import built_levels

from nextn.distributed.exchange import Exchange
from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.expert_world import Parcel
from nextn.distributed.group import PeerGone
from nextn.distributed.mesh_world import MeshWorld
from nextn.distributed.placement import Placement

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

RANKS, SHARDS = 4, 2
Result = TypeVar("Result")


@pytest.fixture
def worlds() -> Iterator[list[MeshWorld]]:
    placement, ranks = Placement.trivial(2, 4), mesh(RANKS)
    yield [MeshWorld(ExpertShare(own.rank, RANKS, SHARDS, placement, 1), own) for own in ranks]
    for own in ranks:
        own.close()


def on_all(worlds: list[MeshWorld], task: Callable[[MeshWorld], Result]) -> list[Result]:
    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(task, worlds))


def test_rank_0_decides_on_halves(worlds: list[MeshWorld]) -> None:
    """And all know what all have sent before."""
    for world in worlds:
        world._struct.sent = 10**world.share.rank

    def step(world: MeshWorld, wants: int) -> tuple[int, bool, list[int]]:
        return (
            world.step(5, 3, world.share.rank == wants),
            world.in_halves,
            [w[0] for w in world._struct.rows],
        )

    assert on_all(worlds, partial(step, wants=0)) == [(8, True, [5, 3])] * RANKS
    assert on_all(worlds, partial(step, wants=1)) == [(8, False, [8, 0])] * RANKS
    assert [world.sent_by_group for world in worlds] == [1111] * RANKS
    assert on_all(worlds, lambda world: (world.step(0), world.busy)) == [(0, False)] * RANKS


def test_each_group_has_rows_of_its_own() -> None:
    """Its first rank says how many. All go in halves where one of these wants it."""
    placement, ranks = Placement.trivial(2, 4), mesh(RANKS)
    worlds = [MeshWorld(ExpertShare(own.rank, RANKS, SHARDS, placement, 1), own, groups=2) for own in ranks]
    for world in worlds:
        world._struct.sent = 10**world.share.rank

    def step(world: MeshWorld, wants: int) -> tuple[int, list[list[int]]]:
        rows = (5, 3) if world.group == 0 else (0, 2)
        return world.step(*rows, world.share.rank == wants), [list(w[:2]) for w in world._struct.rows]

    assert [world.group for world in worlds] == [0, 0, 1, 1]
    assert on_all(worlds, partial(step, wants=2)) == [(10, [[5, 0], [3, 2]])] * RANKS
    assert on_all(worlds, partial(step, wants=3)) == [(10, [[8, 2], [0, 0]])] * RANKS
    assert [world.sent_by_group for world in worlds] == [11, 11, 1100, 1100]
    for own in ranks:
        own.close()


def test_what_all_give(worlds: list[MeshWorld]) -> None:
    def exchanged(world: MeshWorld) -> bool:
        exchange, want = Exchange(world, 64), np.arange(RANKS)[:, None] + [[0, 10]]
        for kind in (np.int64, np.float32):
            own = np.array([world.share.rank, 10 + world.share.rank], kind)
            assert np.array_equal(exchange.of_all(own), want)
        return exchange.of_all(np.array(world.share.rank)).tolist() == list(range(RANKS))

    assert on_all(worlds, exchanged) == [True] * RANKS


def test_parcels_come_to_their_rank_only(worlds: list[MeshWorld]) -> None:
    """Two from one rank to another, in their order; one to itself stays where it is."""
    routes = [(0, 2), (1, 3), (0, 2), (3, 0), (1, 1)]

    def handed_over(world: MeshWorld) -> list[int]:
        area = world.area(len(routes) * 8).reshape(len(routes), 8)
        for i, (source, _) in enumerate(routes):
            if source == world.share.rank:
                area[i] = i + 1
        world.hand_over([Parcel(source, to, area[i]) for i, (source, to) in enumerate(routes)])
        world.meet()
        assert (area == area[:, :1]).all()
        return [int(row[0]) for row in area]

    assert on_all(worlds, handed_over) == [
        [1, 0, 3, 4, 0],
        [0, 2, 0, 0, 5],
        [1, 0, 3, 0, 0],
        [0, 2, 0, 4, 0],
    ]


def test_a_rank_that_is_gone(worlds: list[MeshWorld]) -> None:
    def run(world: MeshWorld) -> str:
        if world.share.rank == 3:
            world.give_up("rank 3 has given up")
        with pytest.raises(PeerGone) as gone:
            world.step(1)
        return str(gone.value)

    assert on_all(worlds, run) == ["another rank of this engine has ended"] * 3 + ["rank 3 has given up"]
