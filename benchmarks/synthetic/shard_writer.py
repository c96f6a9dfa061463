"""Writes safetensors shards one tensor at a time: no more than one tensor is in memory."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

INDEX = "model.safetensors.index.json"
_NAMES = {torch.bfloat16: "BF16", torch.float32: "F32"}

Shapes = Mapping[str, tuple[int, ...]]


def file_dtype(name: str) -> torch.dtype:
    """bf16, the routers' correction biases f32."""
    return torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16


def write_shards(
    folder: Path, shapes: Shapes, make: Callable[[str, tuple[int, ...]], Tensor], shard_bytes: int,
    wrote: Callable[[int], object],
) -> int:  # fmt: skip
    """Asks `make` for every tensor once, in order, and writes the shards and their index.

    A shard is as large as fits into shard_bytes, but holds at least one tensor. `wrote` is told the bytes of
    each tensor. Returns the bytes of all tensors.
    """
    shards: list[dict[str, int]] = [{}]  # tensor -> its bytes
    for name, shape in shapes.items():
        size = tensor_bytes(name, shape)
        if shards[-1] and sum(shards[-1].values()) + size > shard_bytes:
            shards.append({})
        shards[-1][name] = size
    weight_map: dict[str, str] = {}
    for i, sizes in enumerate(shards):
        file = f"model-{i + 1:05d}-of-{len(shards):05d}.safetensors"
        weight_map |= dict.fromkeys(sizes, file)
        with (folder / file).open("wb") as out:
            out.write(_header(sizes, shapes))
            for name, size in sizes.items():
                tensor = make(name, shapes[name])
                assert tensor.dtype == file_dtype(name), name
                assert tuple(tensor.shape) == shapes[name], name
                out.write(tensor.contiguous().view(torch.uint8).numpy().reshape(-1).data)
                wrote(size)
    total = sum(sum(sizes.values()) for sizes in shards)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return total


def tensor_bytes(name: str, shape: tuple[int, ...]) -> int:
    return math.prod(shape) * file_dtype(name).itemsize


def _header(sizes: Mapping[str, int], shapes: Shapes) -> bytes:
    """Its length in eight bytes, then JSON, padded so that the tensors begin on a multiple of eight."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, size in sizes.items():
        entries[name] = {
            "dtype": _NAMES[file_dtype(name)],
            "shape": list(shapes[name]),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text
