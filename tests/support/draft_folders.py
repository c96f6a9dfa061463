"""A checkpoint in two parts: the target alone, and its NextN layer as SGLang's and xLLM's tools export it.

The layouts here are written from what those tools do, independently of nextn's own reader and writer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from support.checkpoints import write_checkpoint
from torch import Tensor
from transformers import DeepseekV3Config

Tensors = Mapping[str, Tensor]
QUANTIZATION = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}


def with_copies(config: Mapping[str, Any], tensors: Tensors) -> dict[str, Tensor]:
    """The checkpoint with the modules' copies of embedding and head, as DeepSeek publishes it."""
    made = dict(tensors)
    head = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    for k in range(config["num_nextn_predict_layers"]):
        prefix = f"model.layers.{config['num_hidden_layers'] + k}."
        made[f"{prefix}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
        made[f"{prefix}shared_head.head.weight"] = tensors[head].clone()
    return made


def write_target(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Writes the checkpoint without its NextN layers. config.json is unchanged, as with converters that drop
    the layers."""
    first = config["num_hidden_layers"]
    prefixes = tuple(f"model.layers.{first + k}." for k in range(config["num_nextn_predict_layers"]))
    rest = {name: t for name, t in tensors.items() if not name.startswith(prefixes)}
    return write_checkpoint(folder, config, rest)


def write_sglang(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Writes the NextN layer as SGLang's tool does: without embedding and head, FP8 as stored, and with the
    target's first_k_dense_replace."""
    prefix = f"model.layers.{config['num_hidden_layers']}"
    found = {
        name.replace(prefix, "model.layers.0"): t
        for name, t in tensors.items()
        if name.startswith(prefix) and "embed_tokens" not in name and "shared_head.head" not in name
    }
    changes = {"num_hidden_layers": 1, "architectures": ["DeepseekV3ForCausalLMNextN"]}
    return _write(folder, config, changes, found, "nextn_layer_parameters.safetensors")


def write_xllm(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> Path:
    """Writes the NextN layer as xLLM's tool does: all tensors, FP8 blocks as bf16."""
    prefix = f"model.layers.{config['num_hidden_layers']}"
    own = ("embed_tokens", "shared_head", "enorm", "hnorm", "eh_proj")
    found = {}
    for name, t in tensors.items():
        if not name.startswith(prefix) or name.endswith("_scale_inv"):
            continue
        if t.dtype == torch.float8_e4m3fn:
            t = dequantized(t, tensors[f"{name}_scale_inv"], config).bfloat16()
        new = "model" if any(part in name for part in own) else "model.layers.0"
        found[name.replace(prefix, new)] = t
    changes = {
        "num_hidden_layers": 1, "num_nextn_predict_layers": 1, "architectures": ["DeepseekMTPForCausalLM"],
        "model_type": "deepseek_v3_mtp", "quantization_config": "", "first_k_dense_replace": 0,
    }  # fmt: skip
    return _write(folder, config, changes, found, "mtp_layer_parameters.safetensors")


def fp8_config(config: Mapping[str, Any], block: int) -> dict[str, Any]:
    return {**config, "quantization_config": {**QUANTIZATION, "weight_block_size": [block, block]}}


def dequantized(stored: Tensor, scale: Tensor, config: Mapping[str, Any]) -> Tensor:
    rows, columns = config["quantization_config"]["weight_block_size"]
    every = scale.repeat_interleave(rows, 0).repeat_interleave(columns, 1)
    return stored.float() * every[: stored.shape[0], : stored.shape[1]]


def _write(
    folder: Path, config: Mapping[str, Any], changes: Mapping[str, Any], tensors: Tensors, file: str
) -> Path:
    """Like both tools: reads config.json through transformers, and writes an index for the one file."""
    folder.mkdir(parents=True)
    keys = json.loads(json.dumps({k: v for k, v in config.items() if k != "model_type"}))
    data = {**DeepseekV3Config(**keys).to_dict(), **changes}
    (folder / "config.json").write_text(json.dumps(data, indent=2, sort_keys=True))
    save_file({name: t.contiguous() for name, t in tensors.items()}, folder / file)
    index = {"weight_map": dict.fromkeys(tensors, file)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=4))
    return folder
