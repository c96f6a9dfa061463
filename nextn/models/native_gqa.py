"""Places the weights of grouped-query attention (GQA) for the native kernels; csrc/gqa.h reads them.

A rank has the queries of its own heads, and the keys and values of all heads, because it caches whole
entries. Rows of queries and keys, their biases and their norms are in the order of `nextn.layers.head_rows`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from nextn.families.config import GqaAttention
from nextn.layers.head_rows import row_order
from nextn.models.native_panels import NativePanels, own_rows, some_rows
from nextn.ops.cpu.interface import Layer
from nextn.ops.cpu.weights import PackedWeight
from nextn.ops.stored import Stored


def grouped_attention(to: NativePanels, gqa: GqaAttention, prefix: str, layer: Layer) -> None:
    """All weights except the product after attention. prefix: of the decoder layer's tensor names."""
    cfg, names, width = to.cfg, to.cfg.names, gqa.head_dim
    own = to.part(cfg.num_attention_heads, 1)
    queries, keys = range(own.start * width, own.stop * width), range(gqa.num_key_value_heads * width)
    parts = {names.q_proj: queries, names.k_proj: keys, names.v_proj: keys}
    begins = (0, len(queries), len(queries) + len(keys))
    total = len(queries) + 2 * len(keys)
    tensors = [prefix + name for name in parts]
    if to.alike(tensors):
        whole = to.matrix(total, cfg.hidden_size, tensors)
        weights = [whole, whole, whole]
        firsts: Sequence[int] = begins
    else:  # three matrices: each keeps its own format, so none has to be widened
        weights = [to.matrix(len(rows), cfg.hidden_size, (prefix + name,)) for name, rows in parts.items()]
        layer.key_up, layer.value_up = weights[1].struct, weights[2].struct
        firsts = (0, 0, 0)
    layer.down = weights[0].struct
    for (name, rows), weight, first in zip(parts.items(), weights, firsts, strict=True):
        to.take(prefix + name, _ordered(weight, rows, row_order(cfg, name, len(rows)), first), rows)
    if gqa.qkv_bias:
        bias = to.zeros(total)
        layer.bias = bias.data_ptr()
        for name, rows, first in zip(
            (names.q_bias, names.k_bias, names.v_bias), parts.values(), begins, strict=True
        ):
            part = bias[first : first + len(rows)]
            to.take(prefix + name, _ordered_vector(part, rows, row_order(cfg, name, len(rows))), None)
    if gqa.qk_norm:
        for name, field in ((names.q_norm, "q_norm"), (names.k_norm, "kv_norm")):
            norm = to.zeros(width)
            setattr(layer, field, norm.data_ptr())
            place = _ordered_vector(norm[:width], range(width), row_order(cfg, name, width))
            to.take(prefix + name, place, None)
    if gqa.out_bias:
        layer.out_bias = to.vector(prefix + names.out_bias, cfg.hidden_size)


def _ordered(
    weight: PackedWeight, rows: range, order: Sequence[int] | None, first: int
) -> Callable[..., None]:
    """Returns a function that places these rows of a tensor, in this order, from output `first` on."""

    def place(tensor: Tensor | Stored, scale: Tensor | None = None) -> None:
        own, scales = some_rows(tensor, rows), None if scale is None else own_rows(scale, rows)
        if order is not None:
            own = own.take(order) if isinstance(own, Stored) else own[torch.tensor(order)]
            scales = None if scales is None else scales[torch.tensor(order)]
        weight.place(own, scale=scales, first=first)

    return place


def _ordered_vector(to: Tensor, rows: range, order: Sequence[int] | None) -> Callable[[Tensor], None]:
    def place(tensor: Tensor) -> None:
        own = own_rows(tensor, rows)
        to.copy_(own if order is None else own[torch.tensor(order)])

    return place
