"""The export: what it writes, and that it is there whole or not at all."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.checkpoints import quantize_tensors, random_tensors, tiny_config, write_checkpoint
from support.draft_folders import fp8_config, with_copies, write_sglang, write_target
from support.packed import coded, gptq, gptq_config
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.models import export
from nextn.models.export import export_mtp
from nextn.models.fp8 import dequantize
from nextn.models.names import expected_tensors

CONFIG = {**tiny_config(), "auto_map": {"AutoConfig": "configuration_x.X"}, "torch_dtype": "bfloat16"}
CFG = ModelConfig.from_dict(CONFIG)
PLAIN = random_tensors(expected_tensors(CFG, 1), seed=7)
TENSORS = with_copies(CONFIG, PLAIN)
INDEX = "model.safetensors.index.json"


def written(folder: Path) -> dict[str, Tensor]:
    """All tensors, each in the file that the index says."""
    index = json.loads((folder / INDEX).read_text())
    found: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        part = load_file(file)
        assert {name for name, f in index["weight_map"].items() if f == file.name} == part.keys()
        found |= part
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in found.values())
    return found


def same(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name].view(torch.uint8), tensor.view(torch.uint8)), name


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("fp8", [False, True], ids=["plain", "fp8"])
def test_as_sglang_exports_it(tmp_path: Path, shards: int, fp8: bool) -> None:
    """The same names and bits as SGLang's tool; over several files scales lie in others than weights."""
    config = fp8_config(CONFIG, 16) if fp8 else CONFIG
    tensors = quantize_tensors(TENSORS, 16) if fp8 else TENSORS
    source = write_checkpoint(tmp_path / "source", config, tensors, shards)
    report = export_mtp(source, tmp_path / "out")
    theirs = load_file(
        write_sglang(tmp_path / "theirs", config, tensors) / "nextn_layer_parameters.safetensors"
    )
    same(written(tmp_path / "out"), theirs)
    size = sum(t.numel() * t.element_size() for t in theirs.values())
    assert (report.layers, report.tensors, report.bytes) == (1, len(theirs), size)


def test_config_is_the_source_s_but_for_the_layers(tmp_path: Path) -> None:
    config = fp8_config(CONFIG, 16)
    source = write_checkpoint(tmp_path / "source", config, quantize_tensors(TENSORS, 16))
    changes = {
        "architectures": ["DeepseekV3ForCausalLMNextN"], "num_hidden_layers": 1, "first_k_dense_replace": 0
    }  # fmt: skip
    export_mtp(source, tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "config.json").read_text()) == {**config, **changes}
    export_mtp(source, tmp_path / "plain", dequantize=True)
    assert json.loads((tmp_path / "plain" / "config.json").read_text()) == {**CONFIG, **changes}


def test_dense_module_stays_dense(tmp_path: Path) -> None:
    config = tiny_config(first_k_dense_replace=3)
    tensors = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1))
    export_mtp(write_checkpoint(tmp_path / "source", config, tensors), tmp_path / "out")
    assert (
        ModelConfig.from_dict(
            {
                **json.loads((tmp_path / "out" / "config.json").read_text()),
                "architectures": config["architectures"],
            }
        ).is_moe(0)
        is False
    )


def test_dequantized(tmp_path: Path) -> None:
    stored = quantize_tensors(TENSORS, 16)
    source = write_checkpoint(tmp_path / "source", fp8_config(CONFIG, 16), stored, shards=5)
    export_mtp(source, tmp_path / "out", dequantize=True)
    found = written(tmp_path / "out")
    assert not any("scale_inv" in name for name in found)
    name = "self_attn.o_proj.weight"
    old = f"model.layers.3.{name}"
    want = dequantize(stored[old], stored[f"{old}_scale_inv"], (16, 16), torch.bfloat16)
    assert torch.equal(found[f"model.layers.0.{name}"], want)
    assert {t.dtype for t in found.values()} == {torch.bfloat16, torch.float32}


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("stored", [True, False], ids=["copies stored", "copies left out"])
def test_with_shared(tmp_path: Path, tied: bool, stored: bool) -> None:
    """A module's own tables where the checkpoint has them (here made to differ), else the target's."""
    config = tiny_config(tie_word_embeddings=tied)
    plain = random_tensors(expected_tensors(ModelConfig.from_dict(config), 1))
    tensors = with_copies(config, plain) if stored else plain
    own = [n for n in tensors if n.endswith(("3.embed_tokens.weight", "shared_head.head.weight"))]
    for name in own:
        tensors[name] += 1
    assert bool(own) == stored
    export_mtp(write_checkpoint(tmp_path / "source", config, tensors), tmp_path / "out", with_shared=True)
    found = written(tmp_path / "out")
    embed = plain["model.embed_tokens.weight"]
    head = embed if tied else plain["lm_head.weight"]
    assert torch.equal(found["model.layers.0.embed_tokens.weight"], embed + stored)
    assert torch.equal(found["model.layers.0.shared_head.head.weight"], head + stored)


def test_several_modules(tmp_path: Path) -> None:
    config = tiny_config(num_nextn_predict_layers=2)
    tensors = with_copies(config, random_tensors(expected_tensors(ModelConfig.from_dict(config), 2)))
    source = write_checkpoint(tmp_path / "source", config, tensors)
    assert export_mtp(source, tmp_path / "out").layers == 2
    wanted = {
        name.replace("model.layers.3.", "model.layers.0.").replace("model.layers.4.", "model.layers.1."): t
        for name, t in tensors.items()
        if name.startswith(("model.layers.3.", "model.layers.4."))
        and not name.endswith(("embed_tokens.weight", "head.weight"))
    }
    same(written(tmp_path / "out"), wanted)
    data = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (data["num_hidden_layers"], data["num_nextn_predict_layers"]) == (2, 2)


def test_other_files(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", CONFIG, TENSORS, shards=2)
    copied = (
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
        "LICENSE",
        "configuration_x.py",
    )
    left = ("README.md", ".gitattributes", "pytorch_model.bin", "consolidated.safetensors")
    for name in copied + left:
        (source / name).write_text('{"name": 1}')
    (source / "tokenizer.json").rename(tmp_path / "blob")
    (source / "tokenizer.json").symlink_to(tmp_path / "blob")  # as a download cache keeps them
    (source / "assets").mkdir()
    export_mtp(source, tmp_path / "out")
    found = {file.name for file in (tmp_path / "out").iterdir()}
    assert found == {*copied, "config.json", INDEX, "model-00001-of-00001.safetensors"}
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    assert (tmp_path / "out" / "tokenizer.json").read_text() == '{"name": 1}'


def test_shards_and_progress(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", CONFIG, TENSORS)
    seen: list[tuple[int, int]] = []
    report = export_mtp(
        source, tmp_path / "out", shard_bytes=6000, progress=lambda done, total: seen.append((done, total))
    )
    files = sorted((tmp_path / "out").glob("*.safetensors"))
    assert len(files) > 2
    assert files[0].name == f"model-00001-of-{len(files):05d}.safetensors"
    for file in files:
        with safe_open(file, "pt") as f:
            assert file.stat().st_size < 6000 + 4000 or len(f.keys()) == 1
    assert len(seen) == report.tensors == len(written(tmp_path / "out"))
    assert seen == sorted(seen)
    assert seen[-1] == (report.bytes, report.bytes)


def test_one_tensor_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever has been read is gone before the next tensor is."""
    source = write_checkpoint(tmp_path / "source", CONFIG, TENSORS)
    alive: list[Any] = []
    read = export._read

    def watched(*arguments: Any) -> Tensor:
        assert all(ref() is None for ref in alive)
        tensor = read(*arguments)
        alive.append(weakref.ref(tensor))
        return tensor

    monkeypatch.setattr(export, "_read", watched)
    export_mtp(source, tmp_path / "out")
    assert len(alive) > 20


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("when", ["first", "last", "copying"])
def test_nothing_is_left_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException, when: str
) -> None:
    source = write_checkpoint(tmp_path / "source", CONFIG, TENSORS)
    (source / "tokenizer.json").write_text("{}")
    (tmp_path / "parent").mkdir()
    read, count = export._read, 0

    def failing(*arguments: Any) -> Tensor:
        nonlocal count
        count += 1
        if when == "first" or count == len(export_names):
            raise error
        return read(*arguments)

    def full(*arguments: Any) -> None:
        raise error

    export_names = [n for n in PLAIN if n.startswith("model.layers.3.")]
    if when == "copying":
        monkeypatch.setattr("shutil.copyfile", full)
    else:
        monkeypatch.setattr(export, "_read", failing)
    with pytest.raises(type(error)):
        export_mtp(source, tmp_path / "parent" / "out", shard_bytes=3000)
    assert list((tmp_path / "parent").iterdir()) == []


def test_output_that_is_there(tmp_path: Path) -> None:
    source = write_checkpoint(tmp_path / "source", CONFIG, TENSORS)
    out = tmp_path / "out"
    out.mkdir()
    export_mtp(source, out)  # empty
    before = {file.name: file.stat().st_mtime_ns for file in out.iterdir()}
    for taken in (out, out / "config.json"):
        with pytest.raises(ValueError, match="exists; name a new folder, or remove it first"):
            export_mtp(source, taken)
    assert {file.name: file.stat().st_mtime_ns for file in out.iterdir()} == before
    assert sorted(f.name for f in tmp_path.iterdir()) == ["out", "source"]


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    target = write_target(tmp_path / "target", CONFIG, TENSORS)
    with pytest.raises(ValueError, match=f"{target} has no NextN layer to export"):
        export_mtp(target, tmp_path / "out")
    broken = dict(TENSORS)
    del broken["model.layers.3.enorm.weight"]
    broken["model.layers.3.shared_head.head.weight"] = torch.ones(3, 3)
    source = write_checkpoint(tmp_path / "broken", CONFIG, broken)
    with pytest.raises(ValueError, match=r"1 missing: model\.layers\.3\.enorm\.weight; 1 of the wrong shape"):
        export_mtp(source, tmp_path / "out")
    with pytest.raises(ValueError, match="no such folder; --input-dir must name"):
        export_mtp(tmp_path / "nowhere", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_beside_packed_matrices(tmp_path: Path) -> None:
    """A plain layer of a checkpoint in 4 bits is exported as one of a plain one; a packed layer is not."""
    config = {**CONFIG, "quantization_config": gptq_config(0)}
    name = "model.layers.{}.self_attn.o_proj.weight"
    for layer in (1, 3):
        tensors = dict(TENSORS)
        tensors |= gptq(name.format(layer), coded(tensors.pop(name.format(layer)).float(), 0))
        source = write_checkpoint(tmp_path / f"source{layer}", config, tensors)
        if layer == 3:
            with pytest.raises(
                ValueError, match=r"o_proj.weight is stored in INT4; nextn export-mtp copies plain"
            ):
                export_mtp(source, tmp_path / "out3")
            continue
        export_mtp(source, tmp_path / "out")
        assert "quantization_config" not in json.loads((tmp_path / "out" / "config.json").read_text())
    export_mtp(write_checkpoint(tmp_path / "plain", CONFIG, TENSORS), tmp_path / "same")
    same(written(tmp_path / "out"), written(tmp_path / "same"))
