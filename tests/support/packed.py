"""Writes matrices as compressed-tensors, GPTQ and AWQ store them, number by number from their layouts.

A `Codes` is a matrix before packing: weight = scale * (code - zero). A group of inputs has one scale and one
zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


@dataclass(frozen=True)
class Codes:
    """codes [n, k] int64; scale f16 and zero int64, [n, groups]; index [k]: each input's group."""

    codes: Tensor
    scale: Tensor
    zero: Tensor
    index: Tensor
    bits: int = 4

    @property
    def weight(self) -> Tensor:
        """[n, k] f32."""
        return (self.codes - self.zero[:, self.index]).float() * self.scale.float()[:, self.index]


def coded(
    weight: Tensor, group: int, zeros: bool = True, bits: int = 4, order: Tensor | None = None
) -> Codes:
    """weight [n, k], rounded to the nearest codes. group: inputs in a group; 0: all. order: the inputs, group
    after group."""
    n, k = weight.shape
    group = group or k
    index = torch.empty(k, dtype=torch.int64)
    index[torch.arange(k) if order is None else order] = torch.arange(k) // group
    groups, most = int(index.max()) + 1, 2**bits - 1
    scale, zero = torch.empty(n, groups), torch.full((n, groups), 2 ** (bits - 1))
    for g in range(groups):
        own = weight[:, index == g]
        low, high = own.amin(1).clamp(max=0), own.amax(1).clamp(min=0)
        if zeros:
            scale[:, g] = ((high - low) / most).half().float().clamp(min=1e-4)
            zero[:, g] = torch.round(-low / scale[:, g]).clamp(0, most).long()
        else:
            scale[:, g] = (own.abs().amax(1) / 2 ** (bits - 1)).half().float().clamp(min=1e-4)
    scale = scale.half()
    codes = torch.round(weight / scale.float()[:, index] + zero[:, index]).clamp(0, most).long()
    return Codes(codes, scale, zero, index, bits)


def compressed_tensors(name: str, c: Codes, zeros: bool = True) -> dict[str, Tensor]:
    made = {
        "weight_packed": _packed(c.codes, c.bits),
        "weight_scale": c.scale.bfloat16() if bool((c.scale.bfloat16() == c.scale).all()) else c.scale,
        "weight_shape": torch.tensor(c.codes.shape),
    }
    if zeros:
        made["weight_zero_point"] = _packed(c.zero.t(), c.bits).t().contiguous()
    return _under(name, made)


def gptq(name: str, c: Codes, version: int = 1) -> dict[str, Tensor]:
    zeros = _packed(c.zero.t(), c.bits)
    if version == 1:
        zeros = zeros - sum(1 << c.bits * i for i in range(32 // c.bits))
    return _under(name, {
        "qweight": _packed(c.codes, c.bits).t().contiguous(), "qzeros": zeros,
        "scales": c.scale.t().contiguous(), "g_idx": c.index.int(),
    })  # fmt: skip


def awq(name: str, c: Codes) -> dict[str, Tensor]:
    def words(numbers: Tensor) -> Tensor:
        return _packed(numbers.view(len(numbers), -1, 8)[:, :, AWQ_ORDER].flatten(1), 4)

    return _under(name, {
        "qweight": words(c.codes.t().contiguous()), "qzeros": words(c.zero.t().contiguous()),
        "scales": c.scale.t().contiguous(),
    })  # fmt: skip


def _packed(numbers: Tensor, bits: int) -> Tensor:
    """[rows, n] -> int32 words. The first number of a word is in its low bits; the last word of a row can be
    partly empty."""
    each = 32 // bits
    rows, n = numbers.shape
    words = np.zeros((rows, -(-n // each)), dtype=np.uint32)
    for i in range(n):
        words[:, i // each] |= numbers[:, i].numpy().astype(np.uint32) << np.uint32(bits * (i % each))
    return torch.from_numpy(words.view(np.int32))


def _under(name: str, parts: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removesuffix("weight") + end: tensor for end, tensor in parts.items()}


def ct_config(group: int, zeros: bool = True, bits: int = 4, **changes: Any) -> dict[str, Any]:
    """A quantization_config as llm-compressor writes it."""
    weights = {
        "num_bits": bits, "type": "int", "symmetric": not zeros, "strategy": "group" if group else "channel",
        "group_size": group or None, "dynamic": False, "actorder": None, "observer": "minmax",
        "observer_kwargs": {}, "block_structure": None,
    }  # fmt: skip
    scheme = {
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "targets": ["Linear"],
    }
    return {
        "quant_method": "compressed-tensors", "format": "pack-quantized", "kv_cache_scheme": None,
        "config_groups": {"group_0": scheme}, "quantization_status": "compressed",
        "ignore": ["lm_head", "re:.*mlp.gate$"], **changes,
    }  # fmt: skip


def gptq_config(group: int, **changes: Any) -> dict[str, Any]:
    """A quantization_config as AutoGPTQ and GPTQModel write it."""
    return {
        "quant_method": "gptq", "checkpoint_format": "gptq", "bits": 4, "group_size": group or -1,
        "sym": False, "desc_act": False, "lm_head": False, "true_sequential": True, **changes,
    }  # fmt: skip


def awq_config(group: int, **changes: Any) -> dict[str, Any]:
    """A quantization_config as AutoAWQ writes it."""
    return {
        "quant_method": "awq", "bits": 4, "group_size": group or -1, "zero_point": True, "version": "gemm",
        "modules_to_not_convert": ["self_attn.kv_b_proj"], **changes,
    }  # fmt: skip
