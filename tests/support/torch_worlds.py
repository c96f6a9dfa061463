"""Groups of a world, each with its own steps, for a comparison with one device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from support.exchanges import rows_of_groups
from support.sharing import CONFIG, shared_model, tensors_hash
from torch import Tensor

from nextn.distributed.placement import Placement
from nextn.kvcache.pool import KVPool
from nextn.layers.batch import Span
from nextn.layers.replicas import ExpertParallel

PAGES = (list(range(1, 12)), list(range(12, 24)))
Step = Sequence[Span]


def group_steps(group: int) -> list[Step]:
    """Prompts, chunks, single tokens and a tree, in a different order in each group. Numbers of rows include
    0, 1, and fewer than the group's ranks. In one step no group has rows."""
    one, two = PAGES
    busy: list[Step] = [
        [Span([(7 * i + group) % 47 for i in range(5 + 3 * group)], 0, one)],
        [Span([1, 2, 3], 5 + 3 * group, one), Span([(3 * i + group) % 41 for i in range(19)], 0, two)],
        [Span([2 + group], 8 + 3 * group, one), Span([3] * 4, 19, two, [[0], [0, 1], [0, 2], [0, 2, 3]])],
        [Span([group], 9 + 3 * group, one)],
    ]
    for at in {0: (2,), 1: (0, 3), 2: (), 3: (1, 2, 3)}[group % 4]:
        busy.insert(at, [])
    return [*busy, *[[]] * (8 - len(busy))]


@torch.inference_mode()
def run_steps(model: Any, steps: Sequence[Step], page_size: int = 4) -> list[Tensor]:
    """Hidden states, logits and drafts of each step, and the cache."""
    cfg = model.config
    layers = cfg.num_hidden_layers + model.nextn_layers
    pool = KVPool(layers, 25, page_size, model.cache_layout, model.dtype, model.device)
    found: list[Tensor] = []
    for spans in steps:
        rows = sum(len(span.tokens) for span in spans)
        if model.world is not None and not any(rows_of_groups(model.world, rows)):
            continue
        hidden = model.forward(model.batch(spans, page_size), pool)
        if not rows:
            assert hidden.shape == (0, cfg.hidden_size)
            continue
        drafted = model.draft(model.batch(spans, page_size), hidden.clone(), pool)
        outs = (hidden, model.logits(hidden), drafted, model.draft_logits(drafted))
        found += [out[:rows].clone() for out in outs]
    return [*found, pool.data[:, page_size:]]  # without page 0, which is for padding


def placed(config: Mapping[str, Any], spare: int, seed: int | None = None) -> Placement:
    """A placement of the config's experts and `spare` replicas: trivial, or shuffled with `seed`."""
    layers = config["num_hidden_layers"] - config["first_k_dense_replace"]
    found = Placement.trivial(layers, config["n_routed_experts"], spare)
    if seed is None:
        return found
    return Placement(np.random.default_rng(seed).permuted(found.physical, axis=1), found.experts)


def world_model(
    config: Mapping[str, Any], world: Any, placement: Placement | None = None, static: bool = False,
    **options: Any,
) -> Any:  # fmt: skip
    """Like `shared_model`, for one rank of a world."""
    return shared_model(config, world.attention, experts=ExpertParallel(world, placement, static), **options)


def group_hash(group: int, world: Any, device: str, ops: str, dtype: str) -> str:
    """A hash of the results of a group's steps, in a world or (world None) on one device."""
    options = {"dtype": getattr(torch, dtype), "device": device, "ops": ops}
    alone = world is None
    model = shared_model(CONFIG, **options) if alone else world_model(CONFIG, world, **options)
    return tensors_hash(run_steps(model, group_steps(group)))
