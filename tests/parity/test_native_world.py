"""Native kernels whose experts are shared by all ranks: hidden states, logits and drafts have the bits of one
rank, whoever has an expert, however many groups there are and whatever each of them computes."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from parity.oracle import random_checkpoint
from parity.test_native_ranks import WIDE, Found, assert_equal, tokens
from support.all_cases import few_or_all
from support.meshes import mesh
from support.native_kernels import built_levels
from support.native_model import feed, in_chunks, native_model, pool_for, whole
from support.worlds import InLockstep, in_world

from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.group import PeerGone
from nextn.distributed.mesh_world import MeshWorld
from nextn.distributed.placement import Placement
from nextn.layers.batch import Span

LEVELS = built_levels()
pytestmark = pytest.mark.skipif(not LEVELS, reason="no native kernels")

LAYERS, EXPERTS = 3, 8
CONFIG = {**WIDE, "num_hidden_layers": LAYERS, "n_routed_experts": EXPERTS}
LENGTHS = [(1, 23, 9), (70,), (), (5, 5)]  # of each group's prompts


def of_group(config: dict[str, Any], model: Any, group: int) -> Found:
    prompts = [tokens(config["vocab_size"], n + group) for n in LENGTHS[group]]
    if not prompts:
        return []
    return feed(model, prompts, in_chunks(prompts, 20, group)) + feed(model, prompts, whole(prompts))


def with_spares(spare: int) -> Placement:
    """Each layer with other experts in other places."""
    rng = np.random.default_rng(spare)
    tables = [rng.permutation([*range(EXPERTS), *rng.integers(0, EXPERTS, spare)]) for _ in range(LAYERS)]
    return Placement(np.array(tables), EXPERTS)


def check(
    placement: Placement,
    groups: int,
    each: int,
    shards: int,
    level: str | None = None,
    changes: dict[str, Any] | None = None,
    architecture: str = "DeepseekV3ForCausalLM",
    fp8_rows: bool = False,
    **options: Any,
) -> None:
    config, tensors = random_checkpoint({**CONFIG, **(changes or {})}, 7, architecture)
    make = partial(native_model, config, tensors, level=level, fp8_rows=fp8_rows)

    def work(model: InLockstep, group: int) -> tuple[Found, ExpertWorld]:
        model.pool = pool_for(model.model, 4, 4, 0)  # of a group that has nothing to do
        return of_group(config, model, group), model.world

    apart = bool(options.get("apart"))
    found = in_world(make, work, placement, groups, each, shards, **options)
    for group, ranks in enumerate(found):
        want = of_group(config, make(), group)
        for got, world in ranks:
            assert_equal(got, want)
            check_waits(world, apart)


def check_waits(world: ExpertWorld, apart: bool) -> None:
    """Each kind of waiting is counted where it occurs."""
    waits, several = world.waits, world.groups > 1
    counted = (waits.step > 0, waits.dispatch > 0, waits.combine > 0, waits.slices > 0, waits.moves > 0)
    assert counted == (True, several or not apart, True, world.share.slices > 1, False)
    assert waits.others == several * (waits.step + waits.dispatch * (not apart))
    assert waits.total == sum(waits[:4])


SHAPES = few_or_all([(1, 2, 2), (2, 2, 1), (4, 2, 4)], [(2, 1, 1), (2, 2, 4), (4, 1, 2)])


@pytest.mark.parametrize(("groups", "each", "shards"), SHAPES)
def test_bits_do_not_depend_on_who_has_an_expert(groups: int, each: int, shards: int) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), groups, each, shards)


@pytest.mark.parametrize("level", LEVELS)
def test_on_every_level(level: str) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), 2, 1, 2, level)


@pytest.mark.parametrize(("spare", "dynamic"), [(0, True), (2, True), (8, False)])
def test_nor_on_replicas_and_places(spare: int, dynamic: bool) -> None:
    check(with_spares(spare), 2, 1, 2, dynamic=dynamic)


@pytest.mark.parametrize(("groups", "each", "shards"), [(2, 1, 2), (2, 2, 2), (2, 1, 1)])
def test_nor_on_steps_in_two_halves(groups: int, each: int, shards: int) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), groups, each, shards, halves=True)


@pytest.mark.parametrize("apart", [False, True])
def test_nor_with_grouped_query_attention(apart: bool) -> None:
    """GLM in two halves: half of a key-value head's queries on a rank, and sockets between two."""
    changes = {"num_key_value_heads": 1, "head_dim": 24, "n_group": 1, "topk_group": 1}
    groups, each = (1, 2) if apart else (2, 2)
    placement = Placement.trivial(LAYERS, EXPERTS)
    check(placement, groups, each, 2, None, changes, "Glm4MoeForCausalLM", halves=True, apart=apart)


# Groups, ranks of each, shards, spare experts, in two halves.
APART = few_or_all(
    [(1, 4, 1, 4, True), (2, 1, 2, 4, True), (2, 2, 2, 0, True), (4, 1, 2, 4, False)],
    [(1, 2, 2, 0, False), (1, 4, 4, 0, True), (2, 1, 1, 0, False), (2, 2, 1, 4, False)],
)


@pytest.mark.parametrize(("groups", "each", "shards", "spare", "halves"), APART)
def test_nor_on_several_machines(groups: int, each: int, shards: int, spare: int, halves: bool) -> None:
    """Each rank with arrays of its own, and sockets to the others."""
    check(with_spares(spare), groups, each, shards, halves=halves, apart=True)


@pytest.mark.parametrize("level", LEVELS)
def test_nor_on_several_machines_on_any_level(level: str) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), 1, 2, 2, level, apart=True)


@pytest.mark.parametrize(
    "changes", [{"hidden_size": 250, "moe_intermediate_size": 100}, {"n_shared_experts": 0}]
)
def test_nor_with_odd_widths_or_without_a_shared_expert(changes: dict[str, Any]) -> None:
    for groups, each in ((1, 2), (2, 1)):
        check(with_spares(2), groups, each, 2, changes=changes, apart=True)


@pytest.mark.parametrize(
    ("groups", "each", "shards", "apart"),
    few_or_all([(2, 2, 1, False), (1, 2, 2, True), (4, 1, 4, True)], [(2, 1, 2, False), (2, 2, 2, True)]),
)
def test_nor_where_experts_read_fp8_rows(groups: int, each: int, shards: int, apart: bool) -> None:
    """Rows of three blocks, the last of which has 44 inputs."""
    changes = {"hidden_size": 300}
    check(with_spares(4), groups, each, shards, None, changes, fp8_rows=True, halves=True, apart=apart)


def test_fp8_rows_change_hidden_states_logits_and_drafts() -> None:
    config, tensors = random_checkpoint(CONFIG, 7)
    bf16, fp8 = (of_group(config, native_model(config, tensors, fp8_rows=on), 0) for on in (False, True))
    for row, other in zip(bf16, fp8, strict=True):
        assert not any(torch.equal(a, b) for a, b in zip(row, other, strict=True))


@pytest.mark.parametrize("fp8_rows", [False, True])
def test_rows_go_only_where_an_expert_of_theirs_is(fp8_rows: bool) -> None:
    """One choice of each row, in one layer of two shards. What is sent is more than sockets take at once."""
    hidden, rows = 1024, 290
    changes = {"num_hidden_layers": 2, "num_experts_per_tok": 1, "hidden_size": hidden}  # one is dense
    config, tensors = random_checkpoint({**CONFIG, **changes}, 7)
    make = partial(native_model, config, tensors, fp8_rows=fp8_rows)

    def work(model: Any, group: int) -> tuple[int, np.ndarray]:
        model.pool = pool_for(model.model, 4, 4, 0)
        prompts = [tokens(config["vocab_size"], rows + group)[group:]]
        feed(model, prompts, whole(prompts))
        return model.world.sent, model.expert_counts()[0][0]

    found = [ranks[0] for ranks in in_world(make, work, Placement.trivial(2, EXPERTS), 2, 1, 2, apart=True)]
    row = hidden + hidden // 128 * 4 if fp8_rows else 2 * hidden
    for group, (sent, chosen) in enumerate(found):
        halves = chosen[: EXPERTS // 2], chosen[EXPERTS // 2 :]
        away, others = halves[1 - group].sum(), found[1 - group][1]
        back = (others[: EXPERTS // 2], others[EXPERTS // 2 :])[group].sum()
        assert 0 < away < chosen.sum() == rows
        assert sent == chosen.sum() * 4 + away * row + back * hidden * 4


def test_a_rank_that_goes_after_its_choices_and_before_its_rows() -> None:
    config, tensors = random_checkpoint(CONFIG, 7)
    rows, ranks = 3, mesh(2)
    world = MeshWorld(ExpertShare(0, 2, 2, Placement.trivial(LAYERS, EXPERTS), 1), ranks[0], groups=2)
    model = native_model(config, tensors, world=world)
    other = ranks[1]._data[0]
    assert other is not None
    first = np.zeros((rows, config["num_experts_per_tok"]), np.int32)  # choices of this rank's expert 0
    other.sendall(np.array([rows, 0, 0, 0]).tobytes() + first.tobytes())
    other.shutdown(socket.SHUT_WR)
    assert world.step(rows) == 2 * rows
    pool = pool_for(model, 4, 4, 0)
    with pytest.raises(PeerGone):
        model.forward(model.batch([Span([1] * rows, 0, [1])], 4), pool)
    for own in ranks:
        own.close()
