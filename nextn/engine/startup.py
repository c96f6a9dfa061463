"""The facts that are logged when an engine starts: hardware, allocated memory, drafts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nextn.config import EngineConfig
from nextn.engine.executor import ExecutorInfo
from nextn.engine.world import shares_experts
from nextn.speculation import Speculation

NO_GRAPHS = "none, for the host waits for rows of other ranks"
DRAFTERS = {"NGRAM": "n-grams", "NEXTN+NGRAM": "MTP and n-grams"}  # by algorithm
FP8_ROWS = "rounded to fp8: texts are others than with bf16"


def startup(config: EngineConfig, info: ExecutorInfo, speculation: Speculation) -> dict[str, object]:
    """The facts by name. Names end in the unit of the number: `_bytes`, `_seconds`."""
    shape, steps, simulated = speculation.shape, speculation.num_steps, speculation.simulated
    trees = steps > 0 and shape.topk > 1
    drafter = config.drafter_path if steps > 0 and speculation.mtp else None
    return {
        "model": config.model_path,
        "architecture": info.architecture,
        "device": info.device,
        "dtype": info.dtype,
        "kernels": info.kernels,
        **({"cpu_isa": info.isa} if info.isa else {}),
        **({"arithmetic": arithmetic(info.arithmetic)} if info.arithmetic else {}),
        **({"experts": shards(config)} if shares_experts(config) else {}),
        **({"cuda_graphs": NO_GRAPHS} if shares_experts(config) and info.device == "cuda" else {}),
        **({"expert_rows": FP8_ROWS} if config.ep_dispatch_dtype == "fp8" else {}),
        **({"ranks": config.tp_size} if config.tp_size > 1 else {}),
        "threads": info.threads,
        "weight_bytes": info.weight_bytes,
        "load_seconds": round(info.load_seconds, 3),
        "kv_tokens": info.pages * info.page_size,
        "kv_bytes_target": info.kv_bytes_target,
        "kv_bytes_draft": info.kv_bytes_draft,
        "drafter": DRAFTERS.get(speculation.algorithm, "MTP") if steps else "none",
        **({"draft_layers": info.nextn_layers} if info.nextn_layers > 1 else {}),
        "drafts": "auto" if speculation.auto else steps,
        **({"draft_topk": shape.topk, "draft_tokens": shape.size(steps) + 1} if trees else {}),
        **({"simulated_accept_length": simulated} if simulated is not None else {}),
        **({"draft_model": config.speculative_draft_model_path or Path(drafter).name} if drafter else {}),
        "verify": config.speculative_verify + ", lossy" * speculation.defaults.lossy,
        "prefix_cache": "off" if config.disable_radix_cache else "radix",
    }


def arithmetic(ways: Mapping[str, str]) -> str:
    """Weight formats that the kernels multiply in another format (nextn/ops/cpu/ways.py), as text."""
    return ", ".join(f"{name} weights by {way}" for name, way in ways.items())


def shards(config: EngineConfig) -> str:
    count, spare = config.ep_size, config.ep_num_redundant_experts
    replicas = f", with {spare} redundant ones in each layer" if spare else ""
    return f"shared by {config.world_size} ranks in {count} shard{'s' * (count > 1)}{replicas}"
