"""Small models as GGUF files, made by benchmarks/gguf_checkpoint.py."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from support.checkpoints import random_tensors, tiny_config, write_checkpoint
from support.small_tokenizer import write_small_tokenizer
from torch import Tensor

from nextn.families.config import ModelConfig
from nextn.models.names import expected_tensors

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
# Rows are whole K blocks, except those of kv_b_proj.
WHOLE_BLOCKS = {
    "vocab_size": 300, "hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 256, "moe_intermediate_size": 256, "q_lora_rank": 256, "kv_lora_rank": 64,
    "qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 64, "num_hidden_layers": 2,
}  # fmt: skip


def gguf_checkpoint() -> Any:
    """benchmarks/gguf_checkpoint.py as a module."""
    if str(BENCHMARKS) not in sys.path:
        sys.path.insert(0, str(BENCHMARKS))
    import gguf_checkpoint

    return gguf_checkpoint


def random_folder(
    folder: Path, changes: Mapping[str, Any], seed: int = 0
) -> tuple[Path, dict[str, Any], dict[str, Tensor]]:
    """(folder, config, tensors in f32) of a checkpoint with a tokenizer. Its matrices are bf16. Norms and
    biases are random, unlike those of a new model."""
    config, gen = tiny_config(**changes), torch.Generator().manual_seed(seed)
    cfg = ModelConfig.from_dict(config)
    exact = random_tensors(expected_tensors(cfg, cfg.num_nextn_predict_layers), seed)
    for name, t in exact.items():
        if t.dim() == 1:
            spread = 0.1 if name.endswith("e_score_correction_bias") else 0.3
            exact[name] = t.float() + spread * torch.randn(t.shape, generator=gen)
    write_small_tokenizer(write_checkpoint(folder, config, exact))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    tokenizer["model"]["vocab"]["th"] = len(tokenizer["model"]["vocab"])
    tokenizer["model"]["merges"] = [["t", "h"]]  # GGUF cannot have an empty list
    file.write_text(json.dumps(tokenizer))
    return folder, config, {name: t.to(torch.float32) for name, t in exact.items()}


def as_gguf(folder: Path, out: Path, kind: str, split: int = 0, nextn: bool = True) -> Path:
    """Writes `folder` as a GGUF file. Returns the file, or the first of its parts."""
    script = gguf_checkpoint()
    done = script.write_gguf(folder, out, script.TYPES[kind], split, nextn)
    return Path(done["files"][0])
