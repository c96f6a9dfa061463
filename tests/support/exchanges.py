"""Checks all kinds of exchanges on every rank of a world."""

from __future__ import annotations

import random
from typing import Any

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16, torch.uint8, torch.int64, torch.bool)


def check_exchanges(world: Any, seed: int = 0, device: str = "cpu") -> None:
    """Exchanges tensors of any dtype and number of rows, including none on all ranks. All bits have to
    arrive, NaNs included."""
    rng, each = random.Random(seed), world.size // world.groups
    for dtype in DTYPES:
        for shape in ((), (3,), (2, 5)):
            for most in (0, 1, 4):
                sent = [
                    [_random(rng, most, shape, dtype) for _ in range(world.size)] for _ in range(world.size)
                ]
                due = [len(parts[world.rank]) for parts in sent]
                found = world.exchange([part.to(device) for part in sent[world.rank]], due)
                assert len(found) == world.size
                for rank, part in enumerate(found):
                    want = sent[rank][world.rank]
                    assert (part.dtype, part.shape, part.device.type) == (dtype, want.shape, device)
                    assert torch.equal(_bits(part.cpu()), _bits(want))
        rows = [rng.choice([0, 0, 1, 5]) for _ in range(world.groups)]
        assert rows_of_groups(world, rows[world.rank // each]) == rows


def rows_of_groups(world: Any, own: int) -> list[int]:
    """The number of rows of each group. own: the number of this rank's group, the same on all its ranks."""
    sent = torch.tensor([own], device=getattr(world, "carried_on", "cpu"))
    found = world.exchange([sent] * world.size, [1] * world.size)
    return list(world.by_group([int(rows) for rows in found]))


def _random(rng: random.Random, most: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    found = torch.zeros(rng.randint(0, most), *shape, dtype=dtype)
    raw = rng.randbytes(found.numel() * dtype.itemsize)
    if dtype is torch.bool:
        raw = bytes(b & 1 for b in raw)
    return torch.frombuffer(bytearray(raw), dtype=dtype).view(found.shape) if raw else found


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().flatten().view(torch.uint8)
