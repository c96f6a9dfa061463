"""nextn inspect: what a checkpoint is and what serving it takes.

nextn inspect
nextn inspect --model-path /models/DeepSeek-V3
"""

from __future__ import annotations

import argparse
import math

from nextn.cli.errors import CommandError
from nextn.config import EMBEDDED, model_folder

HELP = "show a checkpoint's architecture, sizes and MTP layer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model-path", "--model", default=EMBEDDED, help=f"checkpoint folder (default: {EMBEDDED})"
    )


def run(args: argparse.Namespace) -> int:
    from nextn.models.config import ModelConfig
    from nextn.models.loader import stored_nextn_layers
    from nextn.models.names import expected_tensors

    folder = model_folder(args.model_path)
    try:
        cfg = ModelConfig.from_folder(folder)
        stored = stored_nextn_layers(folder, cfg)
    except ValueError as e:
        raise CommandError(str(e)) from e

    def count(nextn_layers: int) -> int:
        return sum(math.prod(shape) for shape in expected_tensors(cfg, nextn_layers).values())

    target = count(0)
    moe = sum(cfg.is_moe(i) for i in range(cfg.num_hidden_layers))
    idle = (cfg.n_routed_experts - cfg.num_experts_per_tok) * 3 * cfg.hidden_size * cfg.moe_intermediate_size
    rows = {
        "model": args.model_path,
        "architecture": cfg.architecture,
        "layers": f"{cfg.num_hidden_layers} ({cfg.num_hidden_layers - moe} dense, {moe} MoE)",
        "hidden size, heads": f"{cfg.hidden_size}, {cfg.num_attention_heads}",
        "experts": f"{cfg.n_routed_experts} routed, {cfg.num_experts_per_tok} a token, "
        f"{cfg.n_shared_experts} shared",
        "vocabulary": f"{cfg.vocab_size}",
        "longest context": f"{cfg.max_position_embeddings}",
        "stored as": "FP8 blocks" if cfg.quantization else "plain",
        "parameters": f"{target / 1e6:,.1f} M, {(target - moe * idle) / 1e6:,.1f} M active a token",
        "NextN (MTP) layers": f"{stored}"
        + (f", {(count(1) - target) / 1e6:,.1f} M parameters" if stored else ""),
        "KV cache a token": f"{cfg.latent_dim * cfg.num_hidden_layers} values"
        + (f" + {cfg.latent_dim} for drafting" if stored else ""),
    }
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0
