"""What ranks that share experts say of themselves to the others."""

from __future__ import annotations

import struct
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from support.native_kernels import built_levels

from nextn.distributed.expert_share import ExpertShare
from nextn.distributed.memory import Memory
from nextn.distributed.placement import Placement
from nextn.distributed.shared_world import SharedWorld

pytestmark = pytest.mark.skipif(not built_levels(), reason="no native kernels")


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_a_group_has_sent(groups: int) -> None:
    memory, placement = Memory(), Placement.trivial(2, 4)
    worlds = [SharedWorld(ExpertShare(rank, 4, 2, placement, 1), groups, memory, 4, 8) for rank in range(4)]
    for world in worlds:
        world._struct.sent = 10**world.share.rank
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda world: world.step(1), worlds)) == [groups] * 4
    each = {1: [1111] * 4, 2: [11, 11, 1100, 1100], 4: [1, 10, 100, 1000]}[groups]
    assert [world.sent_by_group for world in worlds] == each


@pytest.mark.parametrize("groups", [1, 2])
def test_a_group_that_is_late(groups: int) -> None:
    """Others wait for it at the beginning of the step, and know that they do not wait for their own rows."""
    memory, placement, late = Memory(), Placement.trivial(2, 4), 0.02
    first, second = (
        SharedWorld(ExpertShare(rank, 2, 2, placement, 1), groups, memory, 2, 8) for rank in range(2)
    )

    def drafts() -> None:
        arrived = memory.mapped(4096)
        while not struct.unpack_from("I", arrived)[0]:
            time.sleep(0.001)
        time.sleep(late)
        second.step(1)

    with ThreadPoolExecutor(1) as thread:
        other = thread.submit(drafts)
        first.step(1)
        other.result()
    waits = first.waits
    assert waits.step > late
    assert waits.total == waits.step
    assert waits.others == (waits.step if groups > 1 else 0)
