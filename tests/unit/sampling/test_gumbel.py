"""Philox against its published vectors; the noise against the Gumbel distribution."""

import math

import pytest
import torch

from nextn.ops.philox import philox
from nextn.sampling.gumbel import gumbel_noise

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("counter", "key", "want"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, want):
    """Random123's kat_vectors, philox4x32 with 10 rounds."""
    words = philox(tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key))
    assert tuple(words[0].tolist()) == want


def test_noise_depends_on_its_key_alone():
    rows = gumbel_noise([7, 7, 8], [0, 1, 0], [5, 5, 5], 1001, CPU)
    assert rows.shape == (3, 1001)
    alone = gumbel_noise([7], [1], [5], 1001, CPU)
    assert torch.equal(rows[1], alone[0])
    # A token's noise does not move with the vocabulary's size.
    assert torch.equal(gumbel_noise([7], [1], [5], 50, CPU)[0], alone[0, :50])
    assert not torch.equal(rows[0], rows[1])
    assert not torch.equal(rows[0], rows[2])


def test_noise_is_standard_gumbel():
    noise = gumbel_noise([3] * 50, [0] * 50, list(range(50)), 4000, CPU).flatten().double()
    assert torch.isfinite(noise).all()
    assert abs(noise.mean().item() - 0.5772) < 0.01
    assert abs(noise.std().item() - math.pi / 6**0.5) < 0.01


def test_seed_uses_all_64_bits():
    low, high = gumbel_noise([1, 1 + 2**63], [0, 0], [0, 0], 8, CPU)
    assert not torch.equal(low, high)
