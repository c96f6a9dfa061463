"""qwen3: GQA with a norm of each head's queries and keys, dense. Rows are in the order of Qwen's files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nextn.gguf.architectures import common
from nextn.gguf.header import Tensor
from nextn.gguf.metadata import Metadata
from nextn.gguf.names import Source, sources

NAMES = {**common.WHOLE, **common.NORMS, **common.ATTENTION, **common.HEAD_NORMS, **common.MLP}


def config(meta: Metadata, tensors: Mapping[str, Tensor], weights: object = None) -> dict[str, Any]:
    return {
        **common.sizes(meta, tensors),
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_key_value_heads": common.key_value_heads(meta),
        "head_dim": common.head_dim(meta),
        "rope_scaling": common.rope_scaling(meta),
        "use_sliding_window": False,
    }


def tensors(meta: Metadata, found: Mapping[str, Tensor]) -> dict[str, Source]:
    return sources(found, NAMES)
