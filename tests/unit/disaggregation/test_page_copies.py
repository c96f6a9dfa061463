"""Pages that are copied between a pool and bytes: with the native kernels as without, and their checksum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nextn.disaggregation.checksum import checksum
from nextn.disaggregation.page_copies import PageCopies

SIZE = 4  # slots of a page
TABLE = [5, 0, 3, 4, 1]


def pool_of(width: int, seed: int = 1) -> Tensor:
    """[3 layers, 7 pages, width] of any bits."""
    bits = torch.randint(
        -(1 << 15), 1 << 15, (3, 7 * SIZE, width), generator=torch.Generator().manual_seed(seed)
    )
    return bits.to(torch.int16).view(torch.bfloat16)


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("width", [10, 32, 96, 288])
def test_out_and_in_again(monkeypatch: pytest.MonkeyPatch, native: bool, width: int) -> None:
    if not native:
        monkeypatch.setattr("nextn.disaggregation.page_copies._native", lambda: None)
    pool = pool_of(width)
    source, other = PageCopies(pool, SIZE), pool_of(width, 2)
    before, target = other.clone(), PageCopies(other, SIZE)
    assert (source.native is not None) == (native and width in (32, 96, 288))
    into = np.zeros(len(TABLE) * source.page_bytes, np.uint8)
    found = source.read(TABLE, into)
    assert found == checksum(into)
    expected = pool.view(3, 7, -1)[:, TABLE].contiguous().view(torch.int16)
    assert np.array_equal(into, expected.view(-1).view(torch.uint8).numpy())
    assert target.write(TABLE[::-1], into) == found
    before.view(3, 7, -1)[:, TABLE[::-1]] = expected.view(torch.bfloat16)
    assert torch.equal(other.view(torch.int16), before.view(torch.int16))
