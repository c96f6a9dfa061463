"""Shards as the safetensors package reads them."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from nextn.models.safetensors_reader import DTYPES
from nextn.models.shard_writer import TensorSpec, write_shards

SPECS = st.builds(
    TensorSpec,
    st.lists(st.integers(0, 5), max_size=3).map(tuple),
    st.sampled_from(list(DTYPES.values())),
)


def made(name: str, spec: TensorSpec) -> Tensor:
    generator = torch.Generator().manual_seed(len(name))
    return torch.randn(spec.shape, generator=generator).to(spec.dtype)


@given(specs=st.lists(SPECS, min_size=1, max_size=8), shard_bytes=st.integers(1, 300))
@settings(max_examples=60, deadline=None)
def test_every_tensor_is_read_back(
    tmp_path_factory: pytest.TempPathFactory, specs: list[TensorSpec], shard_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    tensors = {"x" * (i + 1): spec for i, spec in enumerate(specs)}
    shown: list[int] = []
    total = write_shards(folder, tensors, lambda name: made(name, tensors[name]), shard_bytes, shown.append)
    assert shown == [spec.bytes for spec in specs]
    assert total == sum(shown)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == total
    assert list(index["weight_map"]) == list(tensors)
    files = sorted(folder.glob("*.safetensors"))
    for i, file in enumerate(files):
        assert file.name == f"model-{i + 1:05d}-of-{len(files):05d}.safetensors"
        held = load_file(file)
        assert {name for name, f in index["weight_map"].items() if f == file.name} == held.keys()
        assert len(held) == 1 or sum(tensors[name].bytes for name in held) <= shard_bytes
        for name, tensor in held.items():
            want = made(name, tensors[name])
            assert (tensor.dtype, tensor.shape) == (want.dtype, want.shape)
            assert torch.equal(tensor.float(), want.float())
