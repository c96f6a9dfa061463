"""Random weights for --load-format dummy, with which any architecture runs without a checkpoint."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from nextn.families.names import TensorNames


def dummy_checkpoint(
    names: TensorNames,
    expected: Mapping[str, tuple[int, ...]],
    place: Callable[[str, Tensor], None],
    seed: int,
    dtype: torch.dtype = torch.bfloat16,
    rows: Mapping[str, range] | None = None,
    device: torch.device = torch.device("cpu"),  # noqa: B008
) -> None:
    """Calls `place` once for every expected tensor. A tensor's values depend on seed, name, shape, dtype and
    the kind of device that makes it; a GPU makes 60 GB in seconds.
    rows: by name, the rows that `place` gets; a tensor with an empty range is skipped. Rows have the same
    values as in the whole tensor.

    The scale keeps the size of activations: norms are 1, biases 0, matrices [out, in] normal(0, in**-0.5).
    Rows of the embedding are read, not summed, so they are normal(0, 1).
    """
    generator = torch.Generator(device)
    for name, shape in expected.items():
        if rows is not None and not len(rows.get(name, range(1))):
            continue
        own = range(shape[0]) if rows is None else rows.get(name, range(shape[0]))
        if names.router_bias and name.endswith(names.router_bias):
            place(name, torch.zeros(shape, dtype=torch.float32, device=device))
        elif len(shape) == 1:
            value = 0.0 if name.endswith(".bias") else 1.0
            place(name, torch.full((len(own),), value, dtype=dtype, device=device))
        else:
            generator.manual_seed((seed + zlib.crc32(name.encode())) % 2**63)
            std = 1.0 if name == names.embedding else shape[-1] ** -0.5
            whole = torch.randn(shape, generator=generator, device=device).mul_(std)
            place(name, whole[own.start : own.stop].to(dtype))
