"""Pages that are copied between a pool and bytes: with the native kernels as without, and their checksum."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
import torch
from torch import Tensor

from nextn.disaggregation.checksum import LANES, ROW, checksum
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
        for module in ("page_copies", "checksum"):
            monkeypatch.setattr(f"nextn.disaggregation.{module}.kernels", lambda: None)
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


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("size", [0, 7, ROW, 5 * ROW + 9, 1024 * ROW, 2500 * ROW + 1])
def test_the_checksum_of_any_bytes(monkeypatch: pytest.MonkeyPatch, native: bool, size: int) -> None:
    if not native:
        monkeypatch.setattr("nextn.disaggregation.checksum.kernels", lambda: None)
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    sums, whole = [0] * LANES, size // ROW * ROW
    for row in data[:whole].view(np.uint64).reshape(-1, LANES).tolist():
        sums = [(3 * total + value) % (1 << 64) for total, value in zip(sums, row, strict=True)]
    assert checksum(data) == zlib.crc32(data[whole:], zlib.crc32(np.array(sums, np.uint64)))


@pytest.mark.parametrize("distance", [1, 2, 16, 1024])
def test_rows_that_change_places_are_noticed(distance: int) -> None:
    """And so are two opposite changes of one bit, which leave TCP's checksum as it was."""
    data = np.random.default_rng(1).integers(0, 256, 1100 * ROW, np.uint8)
    right, rows = checksum(data), data.reshape(-1, ROW)
    rows[[3, 3 + distance]] = rows[[3 + distance, 3]]
    assert checksum(data) != right
    rows[[3, 3 + distance]] = rows[[3 + distance, 3]]
    assert checksum(data) == right
    rows[3, 40], rows[3 + distance, 40] = 0x10, 0
    right = checksum(data)
    rows[3, 40], rows[3 + distance, 40] = 0, 0x10
    assert checksum(data) != right
