"""GGUF files through the loader: the tensors of the folder that they were made from, by its names."""

from __future__ import annotations

import random
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from support.gguf_blocks import random_stored
from support.gguf_files import F32_TENSOR, gguf_bytes, guessed, tensor
from support.gguf_models import as_gguf, random_folder

from nextn.checkpoint_error import CheckpointError
from nextn.config import model_folder
from nextn.families.config import ModelConfig
from nextn.families.files import gguf_files, weight_files
from nextn.models.finite import HALVES
from nextn.models.gguf_reader import open_gguf
from nextn.models.loader import load_checkpoint, stored_formats, stored_nextn_layers
from nextn.models.names import expected_tensors, shared_tensors
from nextn.models.sizes import check_target, checked_config
from nextn.ops.stored import Stored
from nextn.ops.widen import widened

SIZES = {
    "vocab_size": 300, "hidden_size": 64, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 32, "intermediate_size": 96, "moe_intermediate_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder, config, tensors = random_folder(tmp_path_factory.mktemp("source"), SIZES)
    return SimpleNamespace(folder=folder, config=config, tensors=tensors)


def loaded(path: Path, dtype=torch.float32, **options):
    folder = model_folder(str(path))
    cfg = checked_config(folder)
    layers = stored_nextn_layers(folder, cfg)
    found: dict = {}
    report = load_checkpoint(
        folder, expected_tensors(cfg, layers), found.__setitem__, shared=shared_tensors(cfg, layers),
        dtype=dtype, **options,
    )  # fmt: skip
    return cfg, found, report


@pytest.mark.parametrize("kind", ["f32", "bf16"])
def test_every_tensor_and_the_config_come_back(source, tmp_path, kind):
    file = as_gguf(source.folder, tmp_path / "m.gguf", kind)
    cfg, found, report = loaded(file)
    assert cfg == ModelConfig.from_folder(source.folder)
    assert found.keys() == source.tensors.keys()
    for name, want in source.tensors.items():
        assert torch.equal(found[name].float(), want), name
    assert report.files == 1
    assert kind == "bf16" or report.bytes == sum(t.numel() * 4 for t in found.values())
    check_target(model_folder(str(file)), cfg)
    assert weight_files(model_folder(str(file))) == [file]


def test_few_bits_as_stored_and_widened(source, tmp_path):
    file = as_gguf(source.folder, tmp_path / "m.gguf", "q8_0")
    formats = stored_formats(model_folder(str(file)), None)
    kv_up = "model.layers.1.self_attn.kv_b_proj.weight"
    matrices = {n for n, t in source.tensors.items() if t.dim() == 2 and not n.endswith("mlp.gate.weight")}
    assert formats.keys() == matrices
    assert {f.name for f in formats.values()} == {"Q8_0"}
    as_stored = matrices - {n for n in matrices if "kv_b_proj" in n}
    kept: dict = {}
    cfg = checked_config(model_folder(str(file)))
    load_checkpoint(model_folder(str(file)), expected_tensors(cfg, 1), kept.__setitem__, as_stored=as_stored)
    _, wide, _ = loaded(file)
    for name in as_stored:
        assert isinstance(kept[name], Stored)
        assert torch.equal(widened(kept[name], torch.float32), wide[name])
    assert kept[kv_up].dtype == torch.float32  # keys are transposed in the file: no blocks for it
    for name, want in source.tensors.items():
        assert (wide[name] - want).abs().max() <= want.abs().max() / 200, name


@pytest.mark.parametrize("kind", ["bf16", "q4_0"])
def test_rows_are_those_of_the_whole(source, tmp_path, kind):
    """Of any tensor, of stacked experts and kv_b_proj too: a rank reads its own."""
    files = [model_folder(str(as_gguf(source.folder, tmp_path / "m.gguf", kind)))]
    rng = random.Random(0)
    (file,) = open_gguf(gguf_files(files[0]))
    with file:
        for name, info in file.tensors.items():
            whole = file.read(name)
            first = rng.randrange(info.shape[0])
            rows = range(first, rng.randint(first, info.shape[0]))
            part = file.read(name, rows)
            if isinstance(whole, Stored):
                assert part.shape == (len(rows), info.shape[1])
                assert torch.equal(part.data, whole.data[rows.start : rows.stop])
            else:
                assert torch.equal(part, whole[rows.start : rows.stop]), (name, rows)
                assert part.shape == (len(rows), *info.shape[1:])


def test_parts_are_one_model(source, tmp_path):
    """Of some layer keys lie in one part and values in another."""
    first = as_gguf(source.folder, tmp_path / "m.gguf", "q8_0", split=5)
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 5
    assert first == parts[0]
    _, want, _ = loaded(as_gguf(source.folder, tmp_path / "whole.gguf", "q8_0"))
    for path in (parts[0], parts[3]):
        _, found, report = loaded(path)
        assert report.files == len(parts)
        assert all(torch.equal(found[n], want[n]) for n in want)
    parts[2].rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=f"its folder lacks other parts: {parts[2].name}"):
        model_folder(str(parts[0]))


def test_a_part_by_another_name(source, tmp_path):
    first = as_gguf(source.folder, tmp_path / "m.gguf", "q8_0", split=20)
    other = first.rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"it is part 1 of [0-9]+; it must be named NAME-"):
        model_folder(str(other))


def test_rows_of_llama_s_queries_stand_as_in_its_checkpoints(tmp_path):
    """The converter puts a head's first half and its second in turns; plain values, blocks and vectors."""
    heads, dim, columns = 3, 8, 64
    weight = torch.arange(heads * dim * columns, dtype=torch.float32).view(heads * dim, columns)
    turned = weight.view(heads, 2, dim // 2, columns).transpose(1, 2).reshape(weight.shape)
    blocks = random_stored("Q4_0", heads * dim, columns)
    bias = turned[:, 0].contiguous()
    names = {
        "q.weight": (turned, [columns, heads * dim], F32_TENSOR),
        "q.bias": (bias, [heads * dim], F32_TENSOR),
        "k.weight": (blocks.data, [columns, heads * dim], 2),
    }
    data, infos = b"", []
    for name, (values, shape, kind) in names.items():
        infos.append(tensor(f"blk.0.attn_{name}", shape, kind, len(data)))
        raw = values.contiguous().view(torch.uint8).numpy().tobytes()
        data += raw + bytes(-len(raw) % 32)
    keys = {"general.architecture": "llama", "llama.attention.head_count": heads}
    file = tmp_path / "m.gguf"
    file.write_bytes(gguf_bytes({k: guessed(v) for k, v in keys.items()}, infos, data))
    (opened,) = open_gguf([file])
    at = "model.layers.0.self_attn."
    order = torch.arange(heads * dim).view(heads, dim // 2, 2).transpose(1, 2).flatten()
    with opened:
        assert torch.equal(opened.read(at + "q_proj.weight"), weight)
        assert torch.equal(opened.read(at + "q_proj.bias"), weight[:, 0])
        assert torch.equal(opened.read(at + "k_proj.weight").data, blocks.data[order])
        for rows in (range(8, 16), range(3, 21), range(5, 6), range(4, 4)):
            assert torch.equal(opened.read(at + "q_proj.weight", rows), weight[rows.start : rows.stop])
            part = opened.read(at + "k_proj.weight", rows)
            assert torch.equal(part.data, blocks.data[order[rows.start : rows.stop]])


def test_scales_that_are_no_numbers_are_found(source, tmp_path):
    file = as_gguf(source.folder, tmp_path / "m.gguf", "q4_0")
    folder = model_folder(str(file))
    (opened,) = open_gguf([file])
    info = opened.tensors["model.layers.2.mlp.experts.3.up_proj.weight"]
    size = HALVES["Q4_0"][0]
    with open(file, "r+b") as data:
        data.seek(info.start + 5 * size)
        data.write(b"\x00\x7e")  # NaN
    with pytest.raises(CheckpointError, match=r"layers\.2\.mlp\.experts\.3\.up_proj\.weight \(1 of"):
        load_checkpoint(folder, expected_tensors(checked_config(folder), 1), lambda name, tensor: None)


def test_a_file_that_became_shorter(source, tmp_path):
    file = as_gguf(source.folder, tmp_path / "m.gguf", "bf16")
    folder = model_folder(str(file))
    with open(file, "r+b") as data:
        data.truncate(file.stat().st_size - 999)
    with pytest.raises(CheckpointError, match="cut short in tensor"):
        checked_config(folder)


def test_a_file_that_is_gone(source, tmp_path):
    file = as_gguf(source.folder, tmp_path / "m.gguf", "bf16")
    folder = model_folder(str(file))
    file.unlink()
    with pytest.raises(CheckpointError, match=r"m\.gguf cannot be read: No such file"):
        checked_config(folder)


def test_unknown_and_missing_tensors_are_named(source, tmp_path):
    file = as_gguf(source.folder, tmp_path / "m.gguf", "bf16")
    data = file.read_bytes()
    file.write_bytes(data.replace(b"blk.1.ffn_up_exps.weight", b"blk.1.ffn_ab_exps.weight"))
    folder = model_folder(str(file))
    with pytest.raises(CheckpointError) as e:
        load_checkpoint(folder, expected_tensors(checked_config(folder), 1), lambda name, tensor: None)
    assert "8 missing: model.layers.1.mlp.experts.0.up_proj.weight" in str(e.value)
    assert "1 unexpected: blk.1.ffn_ab_exps.weight" in str(e.value)


def test_bytes_changed_anywhere_in_the_header(source, tmp_path):
    """Each file is read, or refused by its name; nothing else happens."""
    file = as_gguf(source.folder, tmp_path / "m.gguf", "q8_0")
    data = file.read_bytes()
    (opened,) = open_gguf([file])
    header = min(info.start for info in opened.tensors.values())
    rng, refused = random.Random(5), []
    for i in range(250):
        changed = bytearray(data)
        at = rng.randrange(header)
        changed[at] = rng.choice([0, 255, changed[at] ^ (1 << rng.randrange(8))])
        name = tmp_path / f"{i}.gguf"
        name.write_bytes(changed)
        try:
            folder = model_folder(str(name))
            cfg = checked_config(folder)
            load_checkpoint(
                folder, expected_tensors(cfg, 0), lambda *_: None, skip_prefixes=("model.layers.3",)
            )
        except ValueError as e:
            refused.append((name.stem, str(e)))
        name.unlink()
    assert len(refused) > 50
    assert all(f"/{stem}.gguf" in said or f"/{stem}-" in said for stem, said in refused)
