"""NaN and infinite weights: counted in every dtype that a checkpoint may have, and found by the loader."""

from __future__ import annotations

import pytest
import torch
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.families.quantization import Fp8Blocks
from nextn.models.finite import non_finite, non_finite_scales
from nextn.models.loader import load_checkpoint
from nextn.models.names import expected_tensors

CONFIG = tiny_config()
SHAPES = expected_tensors(ModelConfig.from_dict(CONFIG), 1)
NAME, OTHER = "model.layers.1.self_attn.o_proj.weight", "model.norm.weight"
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("shape", [(1,), (7,), (33, 65), (300, 500)])
def test_plain_dtypes(dtype, shape):
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    assert non_finite(tensor) == 0
    flat = tensor.view(-1)
    for count, value in enumerate([NAN, INF, -INF][: flat.numel()], start=1):
        flat[-count] = value
        assert non_finite(tensor) == count


def test_both_infinities_and_large_values():
    assert non_finite(torch.tensor([INF, -INF], dtype=torch.bfloat16)) == 2  # their sum is NaN
    largest = torch.finfo(torch.bfloat16).max
    for dtype in (torch.bfloat16, torch.float32):  # the sum is infinite, no value is
        assert non_finite(torch.full((64,), largest, dtype=dtype)) == 0
        assert non_finite(torch.full((64,), -largest, dtype=dtype)) == 0
    assert non_finite(torch.tensor([torch.finfo(torch.float32).max, 1.0])) == 1  # infinite in bf16
    assert non_finite(torch.full((9,), 65504.0, dtype=torch.float16)) == 0


def test_every_pattern_of_e4m3():
    patterns = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn)
    assert non_finite(patterns) == int(patterns.float().isnan().sum()) == 2
    for at in range(256):
        assert non_finite(patterns[at : at + 1].clone()) == (at in (0x7F, 0xFF))


def test_scales():
    assert non_finite_scales(torch.tensor([[1e-3, 1e30, 0.0]])) == 0
    assert non_finite_scales(torch.tensor([[NAN, INF, 1e37]])) == 3  # 448 * 1e37 is infinite


def load(folder, **options):
    placed = {}
    report = load_checkpoint(folder, SHAPES, lambda name, *t: placed.update({name: t}), **options)
    return placed, report


@pytest.mark.parametrize("shards", [1, 3])
def test_the_loader_names_them(tmp_path, shards):
    tensors = random_tensors(SHAPES)
    tensors[NAME][3, :2] = NAN
    tensors[OTHER][5] = -INF
    write_checkpoint(tmp_path, CONFIG, tensors, shards)
    with pytest.raises(CheckpointError, match="2 tensors with NaN or infinite values") as caught:
        load(tmp_path)
    message = str(caught.value)
    assert f"{NAME} (2 of {tensors[NAME].numel()})" in message
    assert f"{OTHER} (1 of 32)" in message
    assert str(tmp_path) in message
    assert "--allow-non-finite-weights" in message
    placed, report = load(tmp_path, allow_non_finite=True)
    assert placed.keys() == SHAPES.keys()
    assert len(report.non_finite) == 2
    assert placed[NAME][0][3, :2].isnan().all()


@pytest.mark.parametrize("as_stored", [False, True])
def test_fp8_weights_and_scales(tmp_path, as_stored):
    stored = quantize_tensors(random_tensors(SHAPES), block=16)
    options = {"quantization": Fp8Blocks((16, 16)), "as_stored": [NAME] if as_stored else []}
    assert load(write_checkpoint(tmp_path / "good", CONFIG, stored), **options)[1].non_finite == ()
    stored[NAME].view(torch.uint8)[0, 3] = 0xFF
    stored[NAME + "_scale_inv"][0, 0] = INF
    write_checkpoint(tmp_path / "bad", CONFIG, stored)
    with pytest.raises(CheckpointError) as caught:
        load(tmp_path / "bad", **options)
    assert f"{NAME} (1 of " in str(caught.value)
    assert f"{NAME}_scale_inv (1 of " in str(caught.value)
