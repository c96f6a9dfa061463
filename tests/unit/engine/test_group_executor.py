"""An engine whose ranks are other processes: what it knows of them beside texts, which
tests/e2e/test_groups_identity.py compares."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from support.groups import AtOnce, Groups, Job, config
from support.native_kernels import built_levels
from support.nodes import free_address, ranks_of_other_nodes

from nextn.engine.group_executor import GroupExecutor
from nextn.request import SamplingParams

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")

OPTIONS: dict[str, Any] = {"kv_cache_tokens": 256, "speculative_num_steps": 1}
JOB = Job("a", [5, 6, 7, 8, 9], SamplingParams(max_tokens=12, temperature=0, ignore_eos=True))


@pytest.fixture(scope="module")
def far() -> Iterator[Groups]:
    """Two groups of a rank, the second one's on another machine, after a job of it."""
    given = config(2, 1, 2, nnodes=2, dist_init_addr=free_address(), **OPTIONS)
    with ranks_of_other_nodes(given), Groups(given) as groups:
        groups.serve([AtOnce([]), AtOnce([JOB])])
        yield groups


def executor(groups: Groups, group: int) -> GroupExecutor:
    engine = groups.each[group].engine
    assert engine is not None
    found = engine._executor._own  # type: ignore[attr-defined]
    assert isinstance(found, GroupExecutor)
    return found


def test_it_counts_what_experts_get_as_one_device_does(far: Groups) -> None:
    with Groups(config(1, 1, 1, **OPTIONS)) as one:
        found, wanted = (
            counted(groups, group, Job(f"{group} more", [3, *JOB.tokens], JOB.params))
            for groups, group in ((far, 1), (one, 0))
        )
    assert sum(int(table.sum()) for table in wanted) > 0
    for table, want in zip(found, wanted, strict=True):
        assert np.array_equal(table, want)


def counted(groups: Groups, group: int, job: Job) -> list[np.ndarray]:
    """Rows of that job that chose each expert: of the target, and of the NextN layer."""
    engine = groups.each[group].engine
    assert engine is not None
    before = engine._executor.expert_counts()
    groups.serve([AtOnce([job] if i == group else []) for i in range(len(groups.each))])
    after = engine._executor.expert_counts()
    assert before is not None
    assert after is not None
    return [now - then for now, then in zip(after, before, strict=True)]


def test_it_knows_what_its_shards_had(far: Groups) -> None:
    load = executor(far, 1).shard_load()
    assert load.rows is not None
    assert load.rows.shards == 2
    assert np.frombuffer(load.rows.rows).sum() > 0
    engine = far.each[1].engine
    assert engine is not None
    phases = engine.stats().phases
    assert phases["prefill"].waits.step > 0
    assert phases["decode"].waits.step > 0
    assert phases["decode"].waits.group == 0  # it has one rank
    assert load.sent > 0


def test_pages_go_there_and_back(far: Groups) -> None:
    own = executor(far, 1)
    info = own.info
    shape = (info.cache_layers, 2 * info.page_size, info.cache_width)
    data = torch.randn(shape, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    own.write_pages([2, 3], data)
    found = torch.empty_like(data)
    own.read_pages([2, 3], found)
    assert torch.equal(found, data)
