"""MiMo-7B: Qwen2 with NextN modules of its own names, counted from 0, in which the hidden state comes first.

vLLM zeroes the embedding at position 0, MiMo's own code does not; nextn follows the latter.
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
