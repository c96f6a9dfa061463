"""MiMo-7B: Qwen2 with NextN modules. Their names differ and count from 0, and the hidden state is first.

vLLM sets the module's embedding to 0 at position 0. MiMo's code does not, and neither does nextn.
"""

from __future__ import annotations

from nextn.families import qwen2
from nextn.families.mtp import MTPSpec

NAMES = qwen2.NAMES
parse = qwen2.parse

MTP = MTPSpec(
    prefix="model.mtp_layers.{layer}.",
    counted_on=False,
    embedding_norm="token_layernorm.weight",
    hidden_norm="hidden_layernorm.weight",
    projection="input_proj.weight",
    output_norm="final_layernorm.weight",
    embedding_copy=None,
    head_copy=None,
    embedding_first=False,
    masks_first=False,
    dense=True,
    exported=("MiMoMTPModel", "MiMoMTP"),
    own_prefix="model.",
)
