"""Writes safetensors shards and their index, one tensor at a time: at most one tensor is in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nextn.models.safetensors_reader import DTYPES
from nextn.models.shards import INDEX

NAMES = {dtype: name for name, dtype in DTYPES.items()}


@dataclass(frozen=True)
class TensorSpec:
    """Shape and dtype of a tensor that will be written."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


def write_shards(
    folder: Path, tensors: Mapping[str, TensorSpec], make: Callable[[str], Tensor], shard_bytes: int,
    wrote: Callable[[int], object],
) -> int:  # fmt: skip
    """Calls `make` once for every tensor, in order, and writes the shards and their index.

    A shard has at most shard_bytes of tensors, or a single larger tensor. `wrote` is called with the bytes of
    each tensor. Returns the bytes of all tensors.
    """
    shards: list[dict[str, TensorSpec]] = [{}]
    size = 0
    for name, spec in tensors.items():
        if shards[-1] and size + spec.bytes > shard_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = spec
        size += spec.bytes
    weight_map: dict[str, str] = {}
    for i, specs in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(specs, file)
        with (folder / file).open("wb") as out:
            out.write(_header(specs))
            for name, spec in specs.items():
                out.write(_contents(make(name), spec))
                wrote(spec.bytes)
    total = sum(spec.bytes for spec in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def _contents(tensor: Tensor, spec: TensorSpec) -> memoryview:
    assert (tensor.dtype, tuple(tensor.shape)) == (spec.dtype, spec.shape), spec
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data


def _header(specs: Mapping[str, TensorSpec]) -> bytes:
    """The file's header: 8 bytes of length, then JSON, padded so that the tensors are aligned to 8 bytes."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, spec in specs.items():
        offsets = [at, at + spec.bytes]
        entries[name] = {"dtype": NAMES[spec.dtype], "shape": list(spec.shape), "data_offsets": offsets}
        at += spec.bytes
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
