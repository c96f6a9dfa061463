"""Experts that move while the engine serves: hidden states, logits and drafts have the bits of one rank, and
afterwards every rank holds what it would have been given with the last placement."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from parity.oracle import random_checkpoint
from parity.test_native_ranks import Found, assert_equal, fp8_model
from parity.test_native_world import CONFIG, EXPERTS, LAYERS, of_group
from support.all_cases import few_or_all
from support.native_kernels import built_levels
from support.native_model import native_model, pool_for
from support.worlds import InLockstep, in_world

from nextn.config import EngineConfig
from nextn.distributed.expert_mover import ExpertMover
from nextn.distributed.expert_share import ExpertShare, ExpertTable
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.memory import Memory
from nextn.distributed.placement import Placement
from nextn.distributed.shared import SharedRanks
from nextn.distributed.shared_world import SharedWorld
from nextn.engine import balance
from nextn.engine.balance import Balancer
from nextn.models.native import NativeModel
from nextn.ops.stored import INT4, W8A16, Format

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

Make = Callable[..., NativeModel]
DENSE = 1  # layers without experts
MOE = LAYERS - DENSE
TURNS = 3


def shuffled(rng: np.random.Generator, spare: int, layers: int) -> Placement:
    tables = [rng.permutation([*range(EXPERTS), *rng.integers(0, EXPERTS, spare)]) for _ in range(layers)]
    return Placement(np.array(tables), EXPERTS)


def check(
    make: Make, groups: int, each: int, shards: int, spare: int, at_once: int | None, **options: Any
) -> None:
    """Every third step all experts go where a die says."""
    config = EngineConfig(
        eplb_rebalance_num_iterations=3, eplb_rebalance_layers_per_chunk=at_once, enable_eplb=True
    )

    def balanced(world: ExpertWorld, model: NativeModel) -> Balancer:
        rng = np.random.default_rng(spare)
        return Balancer(config, world, model, lambda *_: shuffled(rng, spare, MOE))

    def work(model: InLockstep, group: int) -> tuple[Found, InLockstep]:
        model.pool = pool_for(model.model, 4, 4, 0)
        return [one for _ in range(TURNS) for one in of_group(dict(CONFIG), model, group)], model

    start = shuffled(np.random.default_rng(99), spare, MOE)
    found = in_world(make, work, start, groups, each, shards, balance=balanced, first_layer=DENSE, **options)
    want = [of_group(dict(CONFIG), make(), group) for group in range(groups)]
    for group, ranks in enumerate(found):
        for got, model in ranks:
            assert_equal(got, want[group] * TURNS)
            assert model.balancer is not None
            assert model.balancer.rebalancings >= 2
            assert model.balancer.moved > 2 * MOE
            assert model.balancer.imbalance > 1.0
            assert_as_loaded(make, model.world.share, model.model)
    last = {model.world.share.placement for ranks in found for _, model in ranks}
    assert len(last) == 1


def assert_as_loaded(make: Make, share: ExpertShare, model: NativeModel) -> None:
    """As in a new model with the same placement."""
    memory = Memory()
    ranks = model._ranks and SharedRanks(model._ranks.rank, model._ranks.size, memory, 1, 1)
    world = SharedWorld(share, 1, memory, 1, 1)
    fresh = make(ranks=ranks, world=world)
    assert fresh.weights.tables.keys() == model.weights.tables.keys()
    for layer, table in fresh.weights.tables.items():
        assert_same(model.weights.tables[layer], table)
    memory.close()


def assert_same(got: ExpertTable, want: ExpertTable) -> None:
    assert np.array_equal(got.count, want.count)
    for expert, count in enumerate(want.count):
        assert np.array_equal(got.replicas[expert, :count], want.replicas[expert, :count])
    for ours, theirs in ((got.gate_up, want.gate_up), (got.down, want.down)):
        assert torch.equal(ours.data, theirs.data)
        if theirs.scales is not None:
            assert ours.scales is not None
            assert torch.equal(ours.scales, theirs.scales)


CONFIG_AND_TENSORS = random_checkpoint(CONFIG, seed=7)
INT8 = {"quantize": W8A16}
IN_4_BITS = {"quantize": Format(INT4, 32, zeros=True)}


def of(options: dict[str, Any]) -> Make:
    return partial(native_model, *CONFIG_AND_TENSORS, **options)


@pytest.mark.parametrize(
    ("groups", "each", "shards", "spare", "at_once"),
    few_or_all(
        [(2, 1, 2, 0, 1), (1, 2, 2, 2, None), (2, 2, 2, 8, 1)], [(2, 1, 2, 8, None), (4, 1, 4, 0, None)]
    ),
)
def test_bits_do_not_change(groups: int, each: int, shards: int, spare: int, at_once: int | None) -> None:
    check(of({}), groups, each, shards, spare, at_once)


@pytest.mark.parametrize(
    ("groups", "each", "shards", "dynamic"), few_or_all([(2, 2, 2, False)], [(2, 1, 2, True)])
)
def test_nor_in_int8(groups: int, each: int, shards: int, dynamic: bool) -> None:
    check(of(INT8), groups, each, shards, 8, None, dynamic=dynamic)


def test_nor_in_4_bits() -> None:
    check(of(IN_4_BITS), 2, 1, 2, 2, None)


@pytest.mark.parametrize(("groups", "each", "shards"), few_or_all([(2, 2, 2)], [(2, 1, 2)]))
def test_nor_in_fp8_blocks(groups: int, each: int, shards: int) -> None:
    """Of which a slice may begin within one."""
    _, make = fp8_model(CONFIG, 9, 48)
    check(make, groups, each, shards, 2, None)


@pytest.mark.parametrize(
    ("groups", "each", "shards", "spare"),
    few_or_all([(1, 4, 2, 0), (2, 2, 2, 8)], [(1, 2, 2, 8), (1, 4, 4, 8)]),
)
def test_nor_on_several_machines(groups: int, each: int, shards: int, spare: int) -> None:
    check(of(INT8 if spare else {}), groups, each, shards, spare, None, apart=True)


def test_nor_with_little_room_for_experts_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time."""
    monkeypatch.setattr(balance, "ExpertMover", partial(ExpertMover, staging=1))
    check(of(INT8), 1, 4, 2, 8, None, apart=True)


def test_nor_on_steps_in_two_halves() -> None:
    check(of({}), 2, 1, 2, 2, None, halves=True)


def test_nor_where_only_some_are_in_fp8() -> None:
    """Then none is kept so, on any rank."""
    _, make = fp8_model(CONFIG, 9, 48, but="experts.7.")
    check(make, 2, 1, 2, 2, None)


@pytest.mark.parametrize(("threshold", "moves"), [(0.0, False), (1.0, True)])
def test_experts_move_where_shards_are_uneven(threshold: float, moves: bool) -> None:
    """By EPLB's plan, from what rows chose."""
    config = EngineConfig(
        eplb_rebalance_num_iterations=4,
        eplb_min_rebalancing_utilization_threshold=threshold,
        enable_eplb=True,
    )

    def work(model: InLockstep, group: int) -> tuple[Found, Balancer | None]:
        model.pool = pool_for(model.model, 4, 4, 0)
        return of_group(dict(CONFIG), model, group), model.balancer

    start = Placement.trivial(MOE, EXPERTS)
    found = in_world(of({}), work, start, 2, 1, 2, balance=partial(Balancer, config), first_layer=DENSE)
    for group, [(got, balancer)] in enumerate(found):
        assert_equal(got, of_group(dict(CONFIG), of({})(), group))
        assert balancer is not None
        assert balancer.imbalance > 1.0
        assert (balancer.rebalancings > 0, balancer.moved > 0) == (moves, moves)
