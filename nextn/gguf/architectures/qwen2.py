"""qwen2: Qwen2 and 2.5. They have GQA with biases of queries, keys and values, and are dense. Rows are in the
order of Qwen's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nextn.gguf.architectures import common
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import Source, sources

NAMES = {**common.WHOLE, **common.NORMS, **common.ATTENTION, **common.MLP}


def config(meta: Metadata, tensors: Mapping[str, Tensor], weights: object = None) -> dict[str, Any]:
    found = common.sizes(meta, tensors)
    del found["attention_bias"]  # Qwen2 always has these biases
    return {
        **found,
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "num_key_value_heads": common.key_value_heads(meta),
        "head_dim": common.head_dim(meta),
        "rope_scaling": common.rope_scaling(meta),
        "use_sliding_window": False,
    }


def tensors(meta: Metadata, found: Mapping[str, Tensor]) -> dict[str, Source]:
    return sources(found, NAMES)
