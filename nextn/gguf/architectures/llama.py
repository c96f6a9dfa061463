"""llama: Llama 2 and 3, Mistral, SmolLM. They have GQA and are dense.

Rotary pairs are neighbours in llama.cpp; in Llama's checkpoints, they are an element of a head's first half
and one of its second half. So the rows of q and k have another order in the file, and are reordered when they
are read. Llama 3's rotary factors are a tensor in the file, rope_freqs, but four numbers in config.json.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nextn.gguf.architectures import common
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import Source, sources

NAMES = {**common.WHOLE, **common.NORMS, **common.ATTENTION, **common.MLP}
FACTORS = "rope_freqs.weight"
# The values of all of Meta's models with such factors.
LOW, HIGH, ORIGINAL = 1.0, 4.0, 8192


def config(
    meta: Metadata, tensors: Mapping[str, Tensor], weights: Callable[[Tensor], Sequence[float]]
) -> dict[str, Any]:
    """config.json. weights: reads the values of an f32 tensor."""
    found = common.sizes(meta, tensors)
    if common.experts(meta):
        raise meta.error(".expert_count", "Llama models with experts (Mixtral) are not supported")
    dim = common.head_dim(meta)
    if meta.integer(".rope.dimension_count", dim) != dim:
        raise meta.error(".rope.dimension_count", f"it must equal the width of heads, {dim}")
    scaling = common.rope_scaling(meta)
    if FACTORS in tensors:
        scaling = llama3(meta, weights(tensors[FACTORS]), found["rope_theta"])
    return {
        **found,
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": common.key_value_heads(meta),
        "head_dim": dim,
        "attention_bias": any(name.endswith(".attn_q.bias") for name in tensors),
        "mlp_bias": False,
        "rope_scaling": scaling,
    }


def llama3(meta: Metadata, stored: Sequence[float], theta: float) -> dict[str, Any]:
    """The numbers from which the factors `stored` were computed. Raises CheckpointError if there are none."""
    factor = round(max(stored, default=0.0), 4)
    made = factors(2 * len(stored), theta, factor) if factor >= 1 else []
    if len(made) != len(stored) or not all(
        math.isclose(a, b, rel_tol=1e-4) for a, b in zip(made, stored, strict=True)
    ):
        raise meta.error(
            ".rope.freq_base", f"the factors in tensor {FACTORS!r} are not Llama 3's, the only supported ones"
        )
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LOW,
        "high_freq_factor": HIGH,
        "original_max_position_embeddings": ORIGINAL,
    }


def factors(dim: int, theta: float, factor: float) -> list[float]:
    """The factors by which Llama 3 divides the frequencies of a head of `dim` values; one for each pair."""
    found = []
    for i in range(0, dim, 2):
        length = 2 * math.pi * theta ** (i / dim)
        if length < ORIGINAL / HIGH:
            found.append(1.0)
        elif length > ORIGINAL / LOW:
            found.append(factor)
        else:
            smooth = (ORIGINAL / length - LOW) / (HIGH - LOW)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return found


def tensors(meta: Metadata, found: Mapping[str, Tensor]) -> dict[str, Source]:
    own, others = common.heads(meta), common.key_value_heads(meta)
    heads = {
        f"blk.{{layer}}.attn_{side}.{kind}": count
        for side, count in (("q", own), ("k", others))
        for kind in ("weight", "bias")
    }
    return sources({name: t for name, t in found.items() if name != FACTORS}, NAMES, heads=heads)
