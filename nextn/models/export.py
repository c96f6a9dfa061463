"""Writes a checkpoint's NextN layers to a separate folder, for --speculative-draft-model-path.

    export_mtp("/models/DeepSeek-V3", "/models/DeepSeek-V3-NextN")

Names and config.json are as in SGLang's export: modules are counted from 0, and `architectures` is the name
of a drafter. SGLang loads these names. They allow several modules; xLLM's names allow one. FP8 blocks are
copied unchanged.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.families.files import GGUF_FILES, CheckpointError, checkpoint_folder, read_json
from nextn.families.quantization import Fp8Blocks
from nextn.models.fp8 import SCALE_SUFFIX, dequantize
from nextn.models.loader import compare, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_tensors, shared_tensors, target_prefixes
from nextn.models.new_folder import new_folder
from nextn.models.safetensors_reader import DTYPES
from nextn.models.shard_writer import TensorSpec, write_shards
from nextn.models.shards import Shards, open_shards
from nextn.models.sizes import checked_config
from nextn.ops.stored import FP8

NOT_COPIED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf")  # weights in any format


@dataclass(frozen=True)
class ExportReport:
    """Number of NextN layers written, of tensors (scales included), and of their bytes."""

    layers: int
    tensors: int
    bytes: int


@dataclass(frozen=True)
class _Source:
    """A tensor of the new folder: its shape and dtype, and the name of its source in the checkpoint."""

    spec: TensorSpec
    name: str
    dequantized: bool = False


def export_mtp(
    input_dir: str | Path,
    output_dir: str | Path,
    *,
    dequantize: bool = False,
    with_shared: bool = False,
    shard_bytes: int = 5_000_000_000,
    progress: Callable[[int, int], None] | None = None,
) -> ExportReport:
    """Writes the NextN layers, one tensor at a time. `output_dir` is written completely or not at all.

    dequantize: FP8 blocks become bf16; otherwise they are copied. with_shared: also writes the modules'
    copies of embedding and head; if the checkpoint has none, the target's are copied. progress(done, total),
    in written bytes, is called after every tensor. Raises CheckpointError if the checkpoint is invalid or has
    no NextN layer, ValueError, and OSError.
    """
    folder = checkpoint_folder(input_dir, "--input-dir")
    cfg = checked_config(folder)
    layers = stored_nextn_layers(folder, cfg)
    if layers == 0:
        raise CheckpointError(f"{folder} has no NextN layer to export")
    with open_shards(folder, cfg.quantization) as shards, new_folder(Path(output_dir)) as new:
        sources = _sources(shards, cfg, layers, dequantize, with_shared)
        total = sum(source.spec.bytes for source in sources.values())
        done = 0

        def wrote(size: int) -> None:
            nonlocal done
            done += size
            if progress is not None:
                progress(done, total)

        specs = {name: source.spec for name, source in sources.items()}
        write_shards(new, specs, lambda name: _read(shards, sources[name], cfg), shard_bytes, wrote)
        for file in sorted(folder.iterdir()):
            if is_copied(file):
                shutil.copyfile(file, new / file.name)
        data = module_config(read_json(folder / "config.json"), cfg, layers)
        if dequantize or not isinstance(cfg.quantization, Fp8Blocks):  # packed tensors are never exported
            data.pop("quantization_config", None)
        text = json.dumps(data, indent=2, ensure_ascii=False) + "\n"
        (new / "config.json").write_text(text, encoding="utf-8")
    return ExportReport(layers, len(sources), total)


def _sources(
    shards: Shards, cfg: ModelConfig, layers: int, to_bf16: bool, with_shared: bool
) -> dict[str, _Source]:
    """The tensors to write, by new name, in the files' order. Raises CheckpointError if a tensor is missing,
    has a wrong shape or dtype, or is stored in a few bits."""
    own, repeated = nextn_tensors(cfg, layers), shared_tensors(cfg, layers)
    origins = {_new_name(name, cfg): name for name in own}
    if with_shared:
        origins |= _tables(shards, cfg, layers)
    shapes = expected_tensors(cfg, layers) | repeated
    needed = {name: shapes[name] for name in origins.values()}
    rest = {name: shape for name, shape in repeated.items() if name not in needed}
    compare(shards, needed, rest, target_prefixes(cfg), cfg.quantization)
    place = {name: i for i, name in enumerate(n for file in shards.files for n in file.tensors)}
    found: dict[str, _Source] = {}
    for new, name in sorted(origins.items(), key=lambda pair: place[pair[1]]):
        info = shards.info(name)
        if info.format is not None or info.widened:
            raise CheckpointError(
                f"{shards.where[name].path}: {name} is stored in {info.widened or info.dtype}; "
                "nextn export-mtp copies plain and FP8 tensors only. To draft with this layer, name the "
                "checkpoint by --speculative-draft-model-path"
            )
        blocks = info.dtype == FP8
        dtype = torch.bfloat16 if blocks and to_bf16 else DTYPES[info.dtype]
        found[new] = _Source(TensorSpec(info.shape, dtype), name, blocks and to_bf16)
        if blocks and not to_bf16:
            scale = shards.info(name + SCALE_SUFFIX)
            found[new + SCALE_SUFFIX] = _Source(TensorSpec(scale.shape, DTYPES[scale.dtype]), scale.name)
    return found


def _tables(shards: Shards, cfg: ModelConfig, layers: int) -> dict[str, str]:
    """New name of every module's embedding and head -> name of the tensor to copy."""
    names, spec = cfg.names, cfg.mtp
    head = names.embedding if cfg.tie_word_embeddings else names.head
    found: dict[str, str] = {}
    for k in range(layers):
        for end, main in ((spec.embedding_copy, names.embedding), (spec.head_copy, head)):
            if end is None:
                raise ValueError(
                    f"{cfg.architecture}: its NextN modules have no copies of embedding and head"
                )
            name = cfg.module_at(k) + end
            found[_new_name(name, cfg)] = name if name in shards.where else main
    return found


def _new_name(name: str, cfg: ModelConfig) -> str:
    """The exported name of a tensor: modules are counted from 0, not from the end of the target's layers."""
    number, rest = cfg.mtp.parts(name)
    return cfg.mtp.at(number - cfg.first_module) + rest


def _read(shards: Shards, source: _Source, cfg: ModelConfig) -> Tensor:
    def read(name: str) -> Tensor:
        tensor = shards.where[name].read(name)
        assert isinstance(tensor, Tensor)
        return tensor

    if not source.dequantized:
        return read(source.name)
    assert isinstance(cfg.quantization, Fp8Blocks)
    block = cfg.quantization.weight_block_size
    return dequantize(read(source.name), read(source.name + SCALE_SUFFIX), block, torch.bfloat16)


def is_copied(file: Path) -> bool:
    """Whether to copy this file of the checkpoint too: tokenizer, generation_config.json, license, and the
    code that config.json's auto_map names."""
    name = file.name
    special = name in ("config.json", GGUF_FILES) or name.lower().startswith("readme") or name.startswith(".")
    return file.is_file() and not special and not name.endswith(NOT_COPIED)


def module_config(data: dict[str, Any], cfg: ModelConfig, layers: int) -> dict[str, Any]:
    """A checkpoint's config.json, changed to that of a model with only `layers` NextN layers."""
    moe = cfg.is_moe(cfg.num_hidden_layers)
    return data | {
        "architectures": [cfg.mtp.exported[0]],
        "num_hidden_layers": layers,
        "num_nextn_predict_layers": layers,
        "first_k_dense_replace": 0 if moe else layers,
    }
