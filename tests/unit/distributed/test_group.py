from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import given
from hypothesis import strategies as st

from nextn.distributed.group import Alone, bounds


@given(st.integers(1, 5000), st.integers(1, 16), st.sampled_from([1, 16, 32, 64]))
def test_parts_cover_all_outputs_in_whole_units(n: int, size: int, unit: int) -> None:
    found = bounds(n, size, unit)
    assert (found[0], found[-1], len(found)) == (0, n, size + 1)
    parts = [end - begin for begin, end in pairwise(found)]
    assert all(begin % unit == 0 for begin in found[:-1])
    assert max(parts) - min(parts) <= unit + n % unit
    assert min(parts) >= 0


def test_a_group_of_one_has_everything() -> None:
    whole = torch.arange(6.0).view(2, 3)
    Alone().gather(whole, (0, 3))
    assert whole.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
