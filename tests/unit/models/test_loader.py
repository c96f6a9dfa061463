"""The loader: every weight arrives once and unchanged, and what does not fit is listed before any does."""

import json
import re

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.families.quantization import Fp8Blocks
from nextn.models.fp8 import dequantize
from nextn.models.loader import load_checkpoint, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_prefixes, shared_tensors

CONFIG = tiny_config()
CFG = ModelConfig.from_dict(CONFIG)
EXPECTED, SHARED = expected_tensors(CFG, 1), shared_tensors(CFG, 1)
STORED = random_tensors(EXPECTED | SHARED, seed=5)
INDEX = "model.safetensors.index.json"


class Placed(dict):
    """A `place` that keeps what it is given and takes each name once."""

    def __call__(self, name, tensor):
        assert name not in self
        self[name] = tensor


def load(folder, expected=EXPECTED, shared=SHARED, **options):
    placed = Placed()
    return placed, load_checkpoint(folder, expected, placed, shared=shared, **options)


def same(placed, tensors):
    assert placed.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert placed[name].dtype == tensor.dtype, name
        assert torch.equal(placed[name], tensor), name


@pytest.mark.parametrize("shards", [1, 2, 7])
def test_everything_arrives_as_stored(tmp_path, shards):
    write_checkpoint(tmp_path, CONFIG, STORED, shards)
    placed, report = load(tmp_path)
    wanted = {name: STORED[name] for name in EXPECTED}
    same(placed, wanted)
    size = sum(t.numel() * t.element_size() for t in wanted.values())
    assert (report.files, report.tensors, report.bytes) == (shards, len(EXPECTED), size)
    assert report.seconds > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_plain_dtypes(tmp_path, dtype):
    tensors = random_tensors(EXPECTED, dtype=dtype)
    same(load(write_checkpoint(tmp_path, CONFIG, tensors))[0], tensors)


def test_in_file_order_one_after_another(tmp_path):
    """The order in which files are read, so that a disk is read from front to back."""
    write_checkpoint(tmp_path, CONFIG, STORED, shards=3)
    placed, _ = load(tmp_path)
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    files = [index[name] for name in placed]
    assert files == sorted(files)


@pytest.mark.parametrize("shards", [1, 5])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8_blocks_are_dequantized(tmp_path, shards, dtype):
    """Blocks of 16, so that edges are partial; over 5 shards many a scale lies in another than its weight."""
    stored = quantize_tensors(STORED, block=16)
    write_checkpoint(tmp_path, CONFIG, stored, shards)
    if shards > 1:
        index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
        apart = [n for n in EXPECTED if n + "_scale_inv" in index and index[n] != index[n + "_scale_inv"]]
        assert apart
    placed, report = load(tmp_path, quantization=Fp8Blocks((16, 16)), dtype=dtype)
    wanted = {
        name: dequantize(stored[name], stored[name + "_scale_inv"], (16, 16), dtype)
        if name + "_scale_inv" in stored
        else stored[name]
        for name in EXPECTED
    }
    same(placed, wanted)
    name = "model.layers.1.self_attn.o_proj.weight"
    assert (placed[name].float() - STORED[name].float()).abs().max() < 0.05
    read = [t for n, t in stored.items() if n not in SHARED]
    assert report.bytes == sum(t.numel() * t.element_size() for t in read)
    assert report.tensors == len(EXPECTED)


def test_unwanted_nextn_layers_are_skipped(tmp_path):
    write_checkpoint(tmp_path, CONFIG, quantize_tensors(STORED, block=16), shards=2)
    target = expected_tensors(CFG, 0)
    options = {"shared": shared_tensors(CFG, 0), "quantization": Fp8Blocks((16, 16))}
    placed, _ = load(tmp_path, target, skip_prefixes=nextn_prefixes(CFG), **options)
    assert placed.keys() == target.keys()
    with pytest.raises(CheckpointError, match=r"unexpected: model\.layers\.3\."):
        load(tmp_path, target, **options)


def test_known_leftovers_are_skipped(tmp_path):
    extra = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    same(load(write_checkpoint(tmp_path, CONFIG, STORED | extra))[0], {n: STORED[n] for n in EXPECTED})


def test_tied_head_may_be_stored(tmp_path):
    cfg = ModelConfig.from_dict(tiny_config(tie_word_embeddings=True))
    write_checkpoint(tmp_path, CONFIG, STORED)
    placed, _ = load(tmp_path, expected_tensors(cfg, 1), shared_tensors(cfg, 1))
    assert "lm_head.weight" not in placed


def test_shared_tensors_may_be_absent(tmp_path):
    tensors = {name: STORED[name] for name in EXPECTED}
    same(load(write_checkpoint(tmp_path, CONFIG, tensors))[0], tensors)


def test_stored_nextn_layers(tmp_path):
    write_checkpoint(tmp_path / "with", CONFIG, STORED, shards=2)
    assert stored_nextn_layers(tmp_path / "with", CFG) == 1
    assert (
        stored_nextn_layers(tmp_path / "with", ModelConfig.from_dict(tiny_config(num_nextn_predict_layers=2)))
        == 1
    )
    assert (
        stored_nextn_layers(tmp_path / "with", ModelConfig.from_dict(tiny_config(num_nextn_predict_layers=0)))
        == 0
    )
    target = {name: STORED[name] for name in expected_tensors(CFG, 0)}
    assert stored_nextn_layers(write_checkpoint(tmp_path / "without", CONFIG, target), CFG) == 0


def refused(folder, message, **options):
    """Loading fails with the message, names the folder and places nothing."""
    placed = Placed()
    with pytest.raises(CheckpointError, match=message) as caught:
        load_checkpoint(folder, EXPECTED, placed, **{"shared": SHARED, **options})
    assert str(folder) in str(caught.value)
    assert not placed
    return str(caught.value)


def test_every_fault_is_listed_at_once(tmp_path):
    tensors = dict(STORED)
    del tensors["model.norm.weight"]
    tensors["model.layers.0.self_attn.bias"] = torch.zeros(3)
    tensors["lm_head.weight"] = torch.zeros(48, 31)
    tensors["model.embed_tokens.weight"] = torch.zeros(48, 32, dtype=torch.int64)
    tensors["model.layers.3.shared_head.head.weight"] = torch.zeros(47, 32)
    write_checkpoint(tmp_path, CONFIG, tensors, shards=2)
    message = refused(tmp_path, "its tensors do not fit its config.json")
    assert "1 missing: model.norm.weight" in message
    assert "1 unexpected: model.layers.0.self_attn.bias" in message
    assert "2 of the wrong shape" in message
    assert "lm_head.weight is [48, 31], the config requires [48, 32]" in message
    assert "model.layers.3.shared_head.head.weight is [47, 32], the config requires [48, 32]" in message
    assert "1 of the wrong dtype: model.embed_tokens.weight is I64 (supported: F32, BF16, F16)" in message


def test_long_lists_are_cut_and_counted(tmp_path):
    write_checkpoint(tmp_path, CONFIG, {name: t for name, t in STORED.items() if ".experts." not in name})
    message = refused(tmp_path, "72 missing: ")
    assert message.count(".experts.") == 10
    assert "and 62 more" in message


FP8_NAME = "model.layers.0.mlp.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(FP8_NAME + "_scale_inv"), f"1 missing: {FP8_NAME}_scale_inv"),
        (
            lambda t: t.update({FP8_NAME + "_scale_inv": torch.ones(2, 2)}),
            f"{FP8_NAME}_scale_inv is [2, 2], its weight's blocks require [2, 3]",
        ),
        (
            lambda t: t.update({FP8_NAME + "_scale_inv": torch.ones(2, 3).bfloat16()}),
            f"{FP8_NAME}_scale_inv is BF16 (supported: F32)",
        ),
        (lambda t: t.update({FP8_NAME: STORED[FP8_NAME]}), f"1 unexpected: {FP8_NAME}_scale_inv"),
        (
            lambda t: t.update({"model.norm.weight": t["model.norm.weight"].to(torch.float8_e4m3fn)}),
            "model.norm.weight is F8_E4M3 (supported: F32, BF16, F16; F8_E4M3 for matrices",
        ),
    ],
)
def test_fp8_faults(tmp_path, change, message):
    tensors = quantize_tensors(STORED, block=16)
    change(tensors)
    write_checkpoint(tmp_path, CONFIG, tensors)
    refused(tmp_path, re.escape(message), quantization=Fp8Blocks((16, 16)))


def test_fp8_weights_without_quantization_config(tmp_path):
    write_checkpoint(tmp_path, CONFIG, quantize_tensors(STORED, block=16))
    message = refused(tmp_path, "of the wrong dtype: .*F8_E4M3 for matrices, with quantization_config")
    assert "_scale_inv" in message


def test_no_safetensors_file(tmp_path):
    refused(tmp_path, "neither model.safetensors nor .*; it is empty")
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    refused(tmp_path, "neither model.safetensors nor .*; it contains pytorch_model.bin")
    refused(tmp_path / "nowhere", "there is no such folder")


def test_broken_file_is_named(tmp_path):
    write_checkpoint(tmp_path, CONFIG, STORED, shards=3)
    file = tmp_path / "model-00002-of-00003.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-100])
    refused(tmp_path, r"model-00002-of-00003\.safetensors: cut short at tensor model\.")
    file.unlink()
    refused(tmp_path, r"index\.json names 1 missing file\(s\): model-00002-of-00003\.safetensors")


def test_index_that_lies(tmp_path):
    write_checkpoint(tmp_path, CONFIG, STORED, shards=2)
    index = tmp_path / INDEX
    good = json.loads(index.read_text())["weight_map"]
    first, second = sorted(set(good.values()))

    def refuse(weight_map, message):
        index.write_text(
            weight_map if isinstance(weight_map, str) else json.dumps({"weight_map": weight_map})
        )
        refused(tmp_path, message)

    here = "model.norm.weight"
    other = second if good[here] == first else first
    refuse({**good, here: other}, f"tensor {here} should be in {other}, which does not hold it")
    refuse({**good, "ghost": first}, f"tensor ghost should be in {first}, which does not hold it")
    refuse(
        {**good, "ghost": "../up.safetensors"}, "'../up.safetensors'; it must be the name of a file beside"
    )
    refuse({**good, "ghost": 3}, "tensor ghost is in 3; it must be the name of a file")
    refuse({}, "weight_map is {}; it must map")
    refuse("{", r"index\.json is not JSON")
    # a file the index leaves out is not read, so what it holds is missing
    refuse({n: f for n, f in good.items() if f == first}, "missing: ")


def test_the_same_tensor_twice(tmp_path):
    write_checkpoint(tmp_path, CONFIG, STORED, shards=2)
    index = json.loads((tmp_path / INDEX).read_text())
    save_file(
        {"model.norm.weight": STORED["model.norm.weight"], "x": torch.ones(1)}, tmp_path / "third.safetensors"
    )
    index["weight_map"]["x"] = "third.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    refused(
        tmp_path,
        r"tensor model\.norm\.weight is in model-0000\d-of-00002\.safetensors and in third\.safetensors",
    )


def test_a_single_file_beside_an_index_is_ambiguous(tmp_path):
    write_checkpoint(tmp_path, CONFIG, STORED, shards=2)
    write_checkpoint(tmp_path, CONFIG, STORED)
    refused(tmp_path, r"holds model\.safetensors and model\.safetensors\.index\.json; remove the one")
