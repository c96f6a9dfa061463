"""nextn inspect: shows a checkpoint's architecture and sizes, or what this machine can run.

nextn inspect
nextn inspect /models/DeepSeek-V3
nextn inspect --machine
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from nextn.cli.errors import CommandError
from nextn.cli.options import UNSET, Store, add_model, one_model
from nextn.config import EMBEDDED, model_folder

if TYPE_CHECKING:
    from nextn.ops.stored import Format

HELP = "show a checkpoint's architecture, sizes and MTP layer"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    parser.add_argument(
        "--model-path", "--model", action=Store, default=UNSET, metavar="DIR",
        help=f"checkpoint folder or GGUF file (default: {EMBEDDED})",
    )  # fmt: skip
    parser.add_argument(
        "--machine", action="store_true", help="show instead what this machine can run: cores, kernels, GPU"
    )


def run(args: argparse.Namespace) -> int:
    rows = machine() if args.machine else checkpoint(one_model(args, EMBEDDED))
    width = max(map(len, rows))
    for name, value in rows.items():
        print(f"{name:<{width}}  {value}")
    return 0


def machine() -> dict[str, str]:
    import torch

    from nextn.bench.machine import this_machine
    from nextn.ops.cpu import reading
    from nextn.ops.cpu.library import NoLibrary, machine_level
    from nextn.ops.cpu.ways import Ways
    from nextn.ops.registry import triton_obstacle

    found = this_machine()
    details: dict[str, str] = {}
    try:
        level, why = machine_level()
        kernels = f"native, {level} ({why})"
        details = {f"  {name} weights": words for name, words in Ways(level).kept().items()}
        if (words := reading.saved(level)) is not None:
            details["  reading"] = words
    except NoLibrary as e:
        kernels = f"plain torch; the native ones cannot be used: {e}"
    cuda = torch.cuda.is_available()
    obstacle = triton_obstacle()
    return {
        "CPU": found.cpu,
        "cores to use": f"{found.cores}",
        "CPU kernels": kernels,
        **details,
        "GPU": torch.cuda.get_device_name() if cuda else "none that torch can use",
        **({"GPU kernels": f"plain torch: {obstacle}" if obstacle else "Triton"} if cuda else {}),
        "torch, Python": f"{found.torch}, {found.python}",
    }


def checkpoint(model_path: str) -> dict[str, str]:
    from nextn.models.loader import stored_formats, stored_nextn_layers
    from nextn.models.names import size_of
    from nextn.models.sizes import checked_config

    folder = model_folder(model_path)
    try:
        cfg = checked_config(folder)
        stored = stored_nextn_layers(folder, cfg)
        formats = stored_formats(folder, cfg.quantization)
    except ValueError as e:
        raise CommandError(str(e)) from e

    _, target = size_of(cfg, 0)
    _, all_values = size_of(cfg, stored)
    moe = sum(cfg.is_moe(i) for i in range(cfg.num_hidden_layers))
    idle = (cfg.n_routed_experts - cfg.num_experts_per_tok) * 3 * cfg.hidden_size * cfg.moe_intermediate_size
    return {
        "model": model_path,
        "architecture": cfg.architecture,
        "layers": f"{cfg.num_hidden_layers} ({cfg.num_hidden_layers - moe} dense, {moe} MoE)",
        "hidden size, heads": f"{cfg.hidden_size}, {cfg.num_attention_heads}"
        + (f" ({cfg.num_key_value_heads} key-value heads)" if cfg.gqa is not None else ""),
        "experts": f"{cfg.n_routed_experts} routed, {cfg.num_experts_per_tok} a token, "
        f"{cfg.n_shared_experts} shared",
        "vocabulary": f"{cfg.vocab_size}",
        "longest context": f"{cfg.max_position_embeddings}",
        "stored as": _formats(formats.values()),
        "parameters": f"{target / 1e6:,.1f} M, {(target - moe * idle) / 1e6:,.1f} M active a token",
        "NextN (MTP) layers": f"{stored}"
        + (f", {(all_values - target) / 1e6:,.1f} M parameters" if stored else ""),
        "KV cache a token": f"{cfg.cache_width * cfg.num_hidden_layers} values"
        + (f" + {cfg.cache_width * stored} for drafting" if stored else ""),
    }


def _formats(stored: Iterable[Format]) -> str:
    """The names of the matrices' stored formats, the most frequent first; "plain" if there is none."""
    names = {"F8_E4M3": "FP8 blocks"}
    counts = Counter(names.get(format.name, format.name) for format in stored)
    return ", ".join(name for name, _ in counts.most_common()) or "plain"
