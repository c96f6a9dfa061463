"""Checkpoint folders as compressed-tensors, GPTQ and AWQ write them, against the same model in plain weights.

compressed-tensors' own package packs and unpacks what tests/support/packed.py does. For GPTQ and AWQ there is
no package that needs no GPU; the converter from AutoAWQ's layout in compressed-tensors is another's reading.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from parity.oracle import random_checkpoint
from parity.test_native_model import BOUND, OPEN, apart, assert_equal, tokens
from support.checkpoints import write_checkpoint
from support.native_model import feed, in_chunks, native_model, reference_model
from support.packed import Codes, awq, awq_config, coded, compressed_tensors, ct_config, gptq, gptq_config
from torch import Tensor

from nextn.config import EngineConfig
from nextn.engine.model import make_model
from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.draft_folder import DraftFolder
from nextn.models.native import NativeModel
from nextn.ops.stored import INT4, Format, Stored
from nextn.ops.widen import widened

CPU = torch.device("cpu")
WIDE = {
    **OPEN, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 80,
    "intermediate_size": 96, "moe_intermediate_size": 64, "n_shared_experts": 1, "q_lora_rank": 32,
    "kv_lora_rank": 32, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16, "v_head_dim": 16,
    "num_hidden_layers": 2,
}  # fmt: skip
Pack = Callable[[str, Codes], dict[str, Tensor]]
FORMATS: dict[str, tuple[dict[str, Any], Pack]] = {
    "compressed-tensors": (ct_config(32), compressed_tensors),
    "gptq": (gptq_config(32), gptq),
    "awq": (awq_config(32), awq),
}


@pytest.mark.parametrize("zeros", [False, True])
def test_compressed_tensors_reads_and_writes_the_same(zeros: bool) -> None:
    pytest.importorskip("compressed_tensors", "0.20")
    from compressed_tensors.compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

    args = QuantizationArgs(num_bits=4, symmetric=not zeros, strategy="group", group_size=32)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    c = coded(torch.randn(24, 96, generator=torch.Generator().manual_seed(2)), 32, zeros)
    packed = {k.removeprefix("a."): t for k, t in compressed_tensors("a.weight", c, zeros).items()}
    theirs = PackedQuantizationCompressor.decompress(packed, scheme)
    assert torch.equal(theirs["weight"].float(), c.weight.to(c.scale.dtype).float())
    state = {"weight": c.weight, "weight_scale": packed["weight_scale"]}
    if zeros:
        state["weight_zero_point"] = (c.zero - 8).to(torch.int8)
    written = PackedQuantizationCompressor.compress(state, scheme)
    assert {k: t.tolist() for k, t in written.items()} == {k: t.tolist() for k, t in packed.items()}


def test_awq_layout_is_that_of_compressed_tensors_converter() -> None:
    pytest.importorskip("compressed_tensors", "0.20")
    from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter

    c = coded(torch.randn(24, 96, generator=torch.Generator().manual_seed(3)), 32)
    found = AutoAWQConverter(group_size=32).process(awq("a.weight", c))
    want = compressed_tensors("a.weight", c)
    assert {k: t.tolist() for k, t in found.items()} == {k: t.tolist() for k, t in want.items()}


def packed_folder(folder: Path, format: str) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """(folder, config, its plain weights): all products of decoder layers are packed."""
    config, tensors = random_checkpoint(WIDE, seed=30)
    quantization, pack = FORMATS[format]
    plain, stored = dict(tensors), dict(tensors)
    for name, tensor in tensors.items():
        if "_proj" in name and "eh_proj" not in name:
            c = coded(tensor, 32)
            plain[name] = c.weight
            del stored[name]
            stored |= pack(name, c)
    write_checkpoint(folder, {**config, "quantization_config": quantization}, stored, shards=2)
    return folder, config, plain


def made(folder: Path, **options: Any) -> Any:
    return make_model(EngineConfig(model_path=str(folder), threads=1, **options), CPU, 1)[0]


@pytest.mark.parametrize("format", FORMATS)
def test_a_packed_checkpoint(format: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The native kernels compute from the codes; both kernels agree with plain weights."""
    folder, config, plain = packed_folder(tmp_path, format)
    with caplog.at_level(logging.WARNING):
        model = made(folder, speculative_num_steps=1)
    assert isinstance(model, NativeModel)
    assert "the NextN layer is stored as INT4: few of its drafts are accepted" in caplog.text
    packed = {name for name in plain if "_proj" in name and "eh_proj" not in name and "kv_b_proj" not in name}
    assert model.weights.as_stored == packed
    prompt = tokens(80, 40)
    got = feed(model, [prompt], [[40]])[0]
    want = feed(reference_model(config, plain), [prompt], [[40]])[0]
    for a, b in zip(got, want, strict=True):
        assert apart(a, b) < BOUND
    assert_equal(feed(model, [prompt], in_chunks([prompt], 9, 0)), [got])
    folders = (folder, write_checkpoint(tmp_path / "plain", config, plain))
    torch_models = [made(f, kernel_backend="reference", speculative_num_steps=1) for f in folders]
    assert_equal(*(feed(model, [prompt], [[40]]) for model in torch_models))


def test_desc_act_and_a_plain_drafter(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Inputs out of order: widened, and the log says which; the NextN layer stays as it is."""
    config, tensors = random_checkpoint(WIDE, seed=31)
    plain, stored = dict(tensors), dict(tensors)
    name = "model.layers.1.self_attn.o_proj.weight"
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    c = coded(tensors[name], 32, order=order)
    plain[name] = c.weight
    del stored[name]
    stored |= gptq(name, c)
    quantization = gptq_config(32, desc_act=True)
    write_checkpoint(tmp_path, {**config, "quantization_config": quantization}, stored)
    with caplog.at_level(logging.INFO):
        model = made(tmp_path, speculative_num_steps=1)
    assert f"widened, as the kernels cannot read them as stored: {name} (inputs out of order" in caplog.text
    assert "NextN layer" not in caplog.text
    prompt = tokens(80, 30)
    assert_equal(feed(model, [prompt], [[30]]), feed(native_model(config, plain), [prompt], [[30]]))


def test_scales_that_the_kernels_cannot_hold(tmp_path: Path) -> None:
    config, tensors = random_checkpoint(WIDE, seed=32)
    name = "model.layers.1.self_attn.o_proj.weight"
    stored = dict(tensors)
    stored |= awq(name, coded(stored.pop(name) * 1e4, 32))
    write_checkpoint(tmp_path, {**config, "quantization_config": awq_config(32)}, stored)
    with pytest.raises(CheckpointError, match=f"{name}: a scale of INT4 weights is not below 256"):
        made(tmp_path)


def test_a_draft_folder_is_packed_in_its_own_way(tmp_path: Path) -> None:
    """The target is plain, the folder that its NextN layer comes from is in GPTQ."""
    folder, config, plain = packed_folder(tmp_path / "packed", "gptq")
    target = write_checkpoint(tmp_path / "plain", config, plain)
    cfg = ModelConfig.from_folder(target)
    draft = DraftFolder.open(folder, cfg)
    kept = draft.stored_formats(cfg, 1)
    assert set(kept.values()) == {Format(INT4, 32, zeros=True)}
    found: dict[str, Tensor | Stored] = {}
    draft.load(cfg, 1, found.__setitem__, torch.float32, kept)
    for name, tensor in found.items():
        assert isinstance(tensor, Stored) == (name in kept)
        got = widened(tensor, torch.float32) if isinstance(tensor, Stored) else tensor
        assert torch.equal(got, plain[name]), name
