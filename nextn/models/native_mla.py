"""Places the weights of latent attention (MLA) for the native kernels; csrc/model.h defines each of them."""

from __future__ import annotations

from functools import partial

from torch import Tensor

from nextn.models.native_panels import NativePanels, own_rows
from nextn.ops.cpu.interface import BF16, INT8, Layer
from nextn.ops.cpu.weights import PackedWeight


def latent_attention(to: NativePanels, prefix: str, layer: Layer) -> None:
    """All weights except the product after attention. prefix: of the decoder layer's tensor names."""
    cfg, names = to.cfg, to.cfg.names
    rank, value = cfg.kv_lora_rank, cfg.v_head_dim
    own = to.part(cfg.num_attention_heads, 1)
    own_queries = range(own.start * cfg.qk_head_dim, own.stop * cfg.qk_head_dim)
    q_in = cfg.q_lora_rank or len(own_queries)
    q_down = prefix + (names.q_down if cfg.q_lora_rank else names.q_proj)
    kv_down = prefix + names.kv_down
    down = to.matrix(q_in + cfg.latent_dim, cfg.hidden_size, (q_down, kv_down))
    if cfg.q_lora_rank:
        to.take(q_down, down.place, None)
    else:
        to.split(q_down, down, own_queries)
    to.take(kv_down, partial(down.place, first=q_in), None)
    # The two halves of kv_up are read per head, and one of them transposed. So the file's blocks do not fit.
    kind = INT8 if to.few_bits(prefix + names.kv_up) else BF16
    key_up = to.matrix(rank, cfg.qk_nope_head_dim, kind=kind, members=len(own))
    value_up = to.matrix(value, rank, kind=kind, members=len(own))
    each, place = cfg.qk_nope_head_dim + value, partial(_place_kv_up, to, key_up, value_up, own)
    to.take(prefix + names.kv_up, place, range(own.start * each, own.stop * each))
    layer.down, layer.key_up, layer.value_up = down.struct, key_up.struct, value_up.struct
    layer.kv_norm = to.vector(prefix + names.kv_norm, rank)
    if cfg.q_lora_rank:
        name = prefix + names.q_up
        q_up = to.matrix(len(own_queries), cfg.q_lora_rank, (name,))
        to.split(name, q_up, own_queries)
        layer.q_norm = to.vector(prefix + names.q_norm, cfg.q_lora_rank)
        layer.q_up = q_up.struct


def _place_kv_up(
    to: NativePanels, key_up: PackedWeight, value_up: PackedWeight, own: range, tensor: Tensor
) -> None:
    nope, value = to.cfg.qk_nope_head_dim, to.cfg.v_head_dim
    both = own_rows(tensor.view(-1, nope + value, to.cfg.kv_lora_rank), own)
    for head, one in enumerate(both):
        key_up.place(one[:nope], member=head, transposed=True)
        value_up.place(one[nope:], member=head)
