"""The script that measures weight formats: what a matrix becomes in each, and which matrices it rounds."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType

import pytest
import torch
from support.checkpoints import quantize_fp8, random_tensors, tiny_config

from nextn.families.config import ModelConfig
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("format_errors")


def test_bits_and_errors(script: ModuleType) -> None:
    weight = torch.randn(200, 256, generator=torch.Generator().manual_seed(0))
    found = {name: own(weight) for name, own, _ in script.formats() if name != "Q4_K"}
    bits = {name: total / weight.numel() for name, (_, total) in found.items()}
    assert bits["bf16"] == 16
    assert bits["w8a16"] == 8 + 32 / 256
    assert bits["w4a16, groups of 32"] == 4 + 24 / 32
    assert bits["w4a16, groups of 128"] == 4 + 24 / 128
    errors = {name: script.apart(rounded, weight) for name, (rounded, _) in found.items()}
    assert errors["bf16"] < errors["w8a16"] < errors["FP8, blocks of 128"] < errors["w4a16, groups of 32"]
    assert (
        errors["w4a16, groups of 32"] < errors["w4a16, groups of 64"] < errors["w4a16, groups of 128"] < 0.1
    )
    blocks = dequantize(*quantize_fp8(weight), (128, 128), torch.float32)
    assert torch.allclose(found["FP8, blocks of 128"][0], blocks, atol=1e-6)


def test_what_is_rounded(script: ModuleType) -> None:
    """The target's matrices in one format, the NextN layer's in another; kv_b in int8 beside 4 bits;
    the rest stays."""
    cfg = ModelConfig.from_dict(tiny_config(hidden_size=64, moe_intermediate_size=32))
    tensors = random_tensors(expected_tensors(cfg, 1), 3, torch.float32)
    found, errors, bits = script.all_rounded(cfg, tensors, script.int4(32), lambda w: (w * 2, 0))
    for name, tensor in tensors.items():
        if tensor.dim() != 2 or "_proj" not in name or "eh_proj" in name:
            want = tensor
        elif name.startswith("model.layers.3."):
            want = tensor * 2
        else:
            want = (script.int8 if "kv_b" in name else script.int4(32))(tensor)[0]
        assert torch.equal(found[name], want), name
    assert {"all", "layer 0", "layer 2", "down_proj", "kv_b_proj"} <= errors.keys()
    assert "layer 3" not in errors
    assert 0.05 < errors["all"] < 0.1
    assert 4.7 < bits < 8
