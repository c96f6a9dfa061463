"""DeepSeek-V2, V2-Lite and V2.5 (arXiv 2405.04434): DeepSeek-V3's architecture with a router that has softmax
scores and no bias, and without NextN modules.

Keys of config.json and refused values are the same as for DeepSeek-V3, except the router's. Absent keys have
the defaults of transformers' DeepseekV2Config. Sizes are required, as for V3.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from nextn.families import deepseek_v3
from nextn.families.config import ModelConfig
from nextn.families.fields import Fields

NAMES = replace(deepseek_v3.NAMES, router_bias="")
MTP = deepseek_v3.MTP  # no module has been published; a separate folder with one would have these names

DEFAULTS: dict[str, Any] = {
    "first_k_dense_replace": 0, "n_shared_experts": 2, "routed_scaling_factor": 1.0,
    "max_position_embeddings": 2048, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def parse(name: str, f: Fields, generation: Fields | None) -> ModelConfig:
    """Same as `nextn.families.deepseek_v3.parse`, with V2's router and defaults."""
    f.only("scoring_func", "softmax")
    f.only("topk_method", "greedy", "group_limited_greedy")
    f.only("norm_topk_prob", False)
    data = {**DEFAULTS, **f.data, "norm_topk_prob": False}
    if f.get("topk_method", "greedy") == "greedy":  # top-k over all experts; groups are ignored
        data |= {"n_group": 1, "topk_group": 1}
    elif f.get("n_routed_experts", None):
        f.integer("n_group")
        f.integer("topk_group")
    if data.get("n_routed_experts"):
        f.integer("num_experts_per_tok")
    for key in ("scoring_func", "topk_method"):
        data.pop(key, None)
    return replace(deepseek_v3.parse(name, Fields(data, f.source), generation), softmax_router=True)
