"""Writes a trained module as a draft folder, in the layout of `nextn export-mtp`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from base import Base
from module import NextN
from torch import Tensor

from nextn.models.export import is_copied, module_config
from nextn.models.new_folder import new_folder
from nextn.models.shard_writer import TensorSpec, write_shards


def write_folder(base: Base, module: NextN, tokens: Sequence[int], output: Path) -> None:
    """Writes the folder. tokens: the draft vocabulary, for token_map.json. Raises ValueError if the output
    exists."""
    prefix = base.config.mtp.at(0)  # in a draft folder modules are numbered from 0
    tensors: dict[str, Tensor] = {
        prefix + name: tensor.detach().to("cpu", torch.bfloat16) for name, tensor in module.named.items()
    }
    specs = {name: TensorSpec(tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    with new_folder(output) as new:
        write_shards(new, specs, tensors.__getitem__, 1 << 40, lambda size: None)
        for file in sorted(base.folder.iterdir()):
            if is_copied(file):
                shutil.copyfile(file, new / file.name)
        config = json.loads((base.folder / "config.json").read_text())
        config.pop("quantization_config", None)
        config = module_config(config, base.config, 1)
        (new / "config.json").write_text(json.dumps(config, indent=2) + "\n")
        (new / "token_map.json").write_text(json.dumps(list(tokens)) + "\n")
