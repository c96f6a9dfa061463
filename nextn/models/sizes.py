"""Checks a config's sizes against the checkpoint's files, before anything is allocated or looped over.

    cfg = checked_config("/models/DeepSeek-V3")

Headers are cheap to read, and their names and shapes determine the fields of config.json. So a config that
asks for a billion layers is refused at once, with the name of the field.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from nextn.families.config import ModelConfig
from nextn.families.files import CheckpointError
from nextn.families.names import numbered
from nextn.models.loader import compare
from nextn.models.names import cut_prefixes, expected_tensors, nextn_prefixes, shared_tensors
from nextn.models.shards import Shards, open_shards


def checked_config(folder: str | Path) -> ModelConfig:
    """The folder's config, whose sizes agree with the files. num_nextn_predict_layers is reduced to the
    number of modules in the files: many converters drop the modules and keep the key.

    Raises CheckpointError, which names a field, its value and what the files contain; ValueError as
    `ModelConfig.from_folder` does.
    """
    cfg = ModelConfig.from_folder(folder)
    with open_shards(folder, cfg.quantization) as shards:
        _check_counts(cfg, shards)
        _check_shapes(cfg, shards)
        most = max(0, _count(cfg.mtp.prefix, shards) - cfg.first_module)
    return dataclasses.replace(cfg, num_nextn_predict_layers=min(cfg.num_nextn_predict_layers, most))


def check_target(folder: str | Path, cfg: ModelConfig) -> None:
    """Raises CheckpointError with every tensor of the target that does not fit. cfg: a `checked_config`."""
    expected, shared = expected_tensors(cfg, 0), shared_tensors(cfg, 0)
    with open_shards(folder, cfg.quantization) as shards:
        compare(shards, expected, shared, nextn_prefixes(cfg) + cut_prefixes(cfg), cfg.quantization)


def _count(template: str, shards: Shards) -> int:
    """Number of layers or experts in the files: the largest last number in names that begin with the
    template, plus 1."""
    found = map(numbered(template).match, shards.where)
    return max((int(m.groups()[-1]) + 1 for m in found if m), default=0)


def _check_counts(cfg: ModelConfig, shards: Shards) -> None:
    """Raises CheckpointError if the config has more layers or experts than the files, so that loops over them
    end soon."""
    layers = _count(cfg.names.layer, shards)
    if cfg.num_hidden_layers > layers:
        raise _error(shards, cfg, "num_hidden_layers", f"the files hold {_numbered('layers', layers)}")
    experts = _count(cfg.names.layer + cfg.names.expert, shards)
    if cfg.n_routed_experts > experts:
        raise _error(shards, cfg, "n_routed_experts", f"the files hold {_numbered('experts', experts)}")


def _check_shapes(cfg: ModelConfig, shards: Shards) -> None:
    """Raises CheckpointError if a field does not fit the shape of its tensor, so that allocations have the
    tensors' sizes. Missing tensors are reported later, when the checkpoint is loaded."""
    names = cfg.names
    first, moe = names.at(0), names.at(cfg.first_k_dense_replace)
    query = names.q_proj if cfg.q_lora_rank is None else names.q_up
    # (field, tensor, axis, other, plus): the axis of the tensor has size field * other + plus
    wanted: list[tuple[str, str, int, str | None, int]] = [
        ("vocab_size", names.embedding, 0, None, 0),
        ("hidden_size", names.embedding, 1, None, 0),
    ]
    if cfg.gqa is not None:
        wanted += [
            ("num_attention_heads", first + names.q_proj, 0, "qk_head_dim", 0),
            ("num_key_value_heads", first + names.k_proj, 0, "qk_head_dim", 0),
        ]
    else:
        wanted += [
            ("q_lora_rank", first + names.q_norm, 0, None, 0),
            ("kv_lora_rank", first + names.kv_norm, 0, None, 0),
            ("qk_rope_head_dim", first + names.kv_down, 0, None, cfg.kv_lora_rank),
            ("v_head_dim", first + names.out, 1, "num_attention_heads", 0),
            ("qk_head_dim", first + query, 0, "num_attention_heads", 0),
        ]
    if cfg.first_k_dense_replace:
        wanted.append(("intermediate_size", first + names.mlp + names.gate, 0, None, 0))
    if cfg.n_routed_experts:
        wanted += [
            ("n_routed_experts", moe + names.router, 0, None, 0),
            ("moe_intermediate_size", moe + names.expert_at(0) + names.gate, 0, None, 0),
            ("n_shared_experts", moe + names.shared_experts + names.gate, 0, "moe_intermediate_size", 0),
        ]
    for field, name, axis, other, plus in wanted:
        value = getattr(cfg, field)
        if not value or name not in shards.where:
            continue
        shape, times = shards.info(name).shape, getattr(cfg, other) if other else 1
        if axis < len(shape) and value * times + plus != shape[axis]:
            if field == "qk_head_dim":
                field = "qk_nope_head_dim"
            by = f" and {'head_dim' if other == 'qk_head_dim' else other} {times}" if other else ""
            raise _error(shards, cfg, field, f"{name} in the files is {list(shape)}", by)


def _numbered(things: str, count: int) -> str:
    return f"{things} 0 to {count - 1}" if count else f"no {things}"


def _error(shards: Shards, cfg: ModelConfig, field: str, found: str, by: str = "") -> CheckpointError:
    return CheckpointError(f"{shards.folder / 'config.json'}: {field} is {getattr(cfg, field)}{by}; {found}")
