"""Compares the memory that an engine will need with that of the machine, before any is allocated."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from pathlib import Path
from typing import Any

import torch

from nextn.config import EngineConfig, model_folder
from nextn.distributed.gpus import ranks_of_a_gpu
from nextn.draft import MAX_DRAFTS
from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.models.names import size_of

CPU_KV_TOKENS = 32768
PER_TENSOR = 500  # bytes of Python objects for each tensor, at least
GIB = 2**30
CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
SIZES = (  # fields of a config that determine the size of allocations
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "moe_intermediate_size", "n_routed_experts", "n_shared_experts", "q_lora_rank", "kv_lora_rank",
    "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
)  # fmt: skip


def device_memory(device: torch.device, ranks: int = 1) -> int:
    """Maximum bytes for each rank of an engine on this device: the GPU's, or its part of the machine's memory
    and swap. Limits of a container (for all ranks) and of `ulimit -v` (for one) can reduce it."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[1]) // ranks_of_a_gpu(ranks)
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + _swap()]
    for file in CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
            found.append(int(Path(file).read_text()))
    each = min(found) // ranks
    with contextlib.suppress(ImportError):  # Windows has none
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_AS)
        if soft != resource.RLIM_INFINITY:
            each = min(each, soft)
    return each


def bounded_context(config: EngineConfig, cfg: ModelConfig, device: torch.device) -> ModelConfig:
    """The config with max_position_embeddings reduced to the longest possible request, because tables have an
    entry for each position. Raises ValueError if --context-length is longer than the model's."""
    longest = cfg.max_position_embeddings
    if config.context_length is not None and config.context_length > longest:
        raise ValueError(f"--context-length is {config.context_length}: the model's own longest is {longest}")
    room = config.kv_cache_tokens
    if room is None:
        room = CPU_KV_TOKENS if device.type == "cpu" else device_memory(device) // (2 * cfg.cache_width)
    needed = min(room, config.context_length or longest) + MAX_DRAFTS + 1  # drafts may exceed the end
    return dataclasses.replace(cfg, max_position_embeddings=min(longest, needed))


def check_memory(
    config: EngineConfig, cfg: ModelConfig, nextn_layers: int, value_bytes: float, device: torch.device
) -> None:
    """Raises ValueError if weights, tables and KV pool cannot fit: CheckpointError with the field of
    config.json that needs most memory, or an error with the option. It counts the minimum: for a rank, its
    part of the matrices, and the embedding, tables and KV pool as for a single process.

    value_bytes: minimum bytes per weight.
    """
    ranks = config.world_size
    have = device_memory(device, len(config.own_ranks))

    def take(cfg: ModelConfig, tokens: int) -> int:  # tokens 0: the weights alone
        tensors, values = size_of(cfg, nextn_layers)
        embedding = cfg.vocab_size * cfg.hidden_size
        values = embedding + (values - embedding) // ranks
        pool = tokens * (cfg.num_hidden_layers + nextn_layers) * cfg.cache_width * 2
        tables = min(tokens, cfg.max_position_embeddings) * cfg.qk_rope_head_dim * 4
        return int(values * value_bytes) + tensors * PER_TENSOR + pool + tables

    tokens = config.kv_cache_tokens or (CPU_KV_TOKENS if device.type == "cpu" else 0)
    needed = take(cfg, tokens)
    if needed <= have:
        return
    who, its = ("the engine", "") if ranks == 1 else (f"each of the {ranks} ranks", " for it")
    what = f"{who} would take {needed / GIB:,.1f} GiB or more, and {_place(device)} {have / GIB:,.1f}{its}"
    if take(cfg, 0) <= have:
        raise ValueError(f"--kv-cache-tokens is {tokens}: {what}; lower it")
    if config.load_format != "dummy":
        raise CheckpointError(f"{config.model_path}: {what}")
    most = min((f for f in SIZES if getattr(cfg, f)), key=lambda f: take(_with_one(cfg, f), tokens))
    file = model_folder(config.model_path) / "config.json"
    raise CheckpointError(f"{file}: {most} is {getattr(cfg, most)}: {what}")


def _with_one(cfg: ModelConfig, field: str) -> ModelConfig:
    changes: dict[str, Any] = {field: 1}
    return dataclasses.replace(cfg, **changes)


def _place(device: torch.device) -> str:
    return "the GPU has" if device.type == "cuda" else "this machine, or its limit for one process, has"


def _swap() -> int:
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("SwapTotal:"):
                return int(line.split()[1]) * 1024
    return 0
