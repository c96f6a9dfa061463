"""Native kernels whose experts are shared by all ranks: hidden states, logits and drafts have the bits of one
rank, whoever has an expert, however many groups there are and whatever each of them computes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from parity.oracle import random_checkpoint
from parity.test_native_ranks import WIDE, Found, assert_equal, tokens
from support.native_kernels import built_levels
from support.native_model import feed, in_chunks, native_model, pool_for, whole
from support.worlds import InLockstep, in_world

from nextn.distributed.placement import Placement

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
    **options: Any,
) -> None:
    config, tensors = random_checkpoint({**CONFIG, **(changes or {})}, 7, architecture)
    make = partial(native_model, config, tensors, level=level)

    def work(model: InLockstep, group: int) -> Found:
        model.pool = pool_for(model.model, 4, 4, 0)  # of a group that has nothing to do
        return of_group(config, model, group)

    found = in_world(make, work, placement, groups, each, shards, **options)
    for group, ranks in enumerate(found):
        want = of_group(config, make(), group)
        for got in ranks:
            assert_equal(got, want)


SHAPES = [
    (groups, each, shards)
    for groups in (1, 2, 4)
    for each in (1, 2)
    for shards in (1, 2, 4)
    if (groups * each) % shards == 0 and 1 < groups * each <= 4 * shards
]


@pytest.mark.parametrize(("groups", "each", "shards"), SHAPES)
def test_bits_do_not_depend_on_who_has_an_expert(groups: int, each: int, shards: int) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), groups, each, shards)


@pytest.mark.parametrize("level", LEVELS)
def test_on_every_level(level: str) -> None:
    check(Placement.trivial(LAYERS, EXPERTS), 2, 1, 2, level)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("spare", [0, 2, 8])
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


# Groups, ranks of each, shards.
APART = [(1, 2, 2), (1, 4, 1), (1, 4, 2), (1, 4, 4), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2), (4, 1, 2)]


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("spare", [0, 4])
@pytest.mark.parametrize(("groups", "each", "shards"), APART)
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
