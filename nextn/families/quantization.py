"""Reads how a checkpoint's matrices are stored, from quantization_config in config.json.

Keys and values are those that these tools write: DeepSeek (FP8 blocks), llm-compressor (compressed-tensors),
AutoGPTQ and GPTQModel, AutoAWQ. A value that nextn cannot read raises ValueError with its key. The files show
which matrices are packed. So lists of unconverted modules (`ignore`, `targets`, `modules_to_not_convert`) are
not needed, and their patterns are never run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nextn.families.fields import Fields

LARGEST_BLOCK = 65536  # rows or columns of an FP8 block; inputs of a group
COMPRESSED_TENSORS, GPTQ, AWQ = "compressed-tensors", "gptq", "awq"


@dataclass(frozen=True)
class Fp8Blocks:
    """Weights stored in e4m3, with one float32 scale for each block of [rows, columns]."""

    weight_block_size: tuple[int, int] = (128, 128)


@dataclass(frozen=True)
class PackedCodes:
    """Weights stored as whole numbers, several in each int32, with a scale for each group of inputs.

    method: COMPRESSED_TENSORS, GPTQ or AWQ. schemes: the possible (bits, inputs of a group) of matrices; 0:
    all inputs are one group. Only for GPTQ: symmetric: every zero point is the middle code. reordered: g_idx
    may assign inputs to groups in any order. minus_one: zero points are stored minus 1.
    """

    method: str
    schemes: tuple[tuple[int, int], ...] = ((4, 128),)
    symmetric: bool = False
    reordered: bool = False
    minus_one: bool = False


Quantization = Fp8Blocks | PackedCodes


def quantization(f: Fields) -> Quantization | None:
    """quantization_config, or None if it is absent. Raises ValueError, which names key and value, if nextn
    cannot read the matrices."""
    t = f.table("quantization_config")
    if t is None:
        return None
    t.get("quant_method")
    t.only("quant_method", "fp8", COMPRESSED_TENSORS, GPTQ, AWQ)
    parsers: dict[str, Callable[[Fields], Quantization]] = {
        "fp8": _fp8, COMPRESSED_TENSORS: _compressed_tensors, GPTQ: _gptq, AWQ: _awq
    }  # fmt: skip
    return parsers[t.get("quant_method")](t)


def _fp8(t: Fields) -> Fp8Blocks:
    t.only("fmt", "e4m3")
    t.only("activation_scheme", "dynamic")
    block = t.get("weight_block_size")
    if not (isinstance(block, list) and len(block) == 2 and all(map(_is_size, block))):
        raise t.error(
            "weight_block_size", f"supported: two positive integers up to {LARGEST_BLOCK}, as in [128, 128]"
        )
    return Fp8Blocks((block[0], block[1]))


def _compressed_tensors(t: Fields) -> PackedCodes:
    t.only("format", "pack-quantized")
    t.only("kv_cache_scheme", None)
    t.only("transform_config", None, {})
    sparsity = t.table("sparsity_config")
    if sparsity is not None:
        sparsity.only("format", "dense")
    _strings(t, "ignore")
    groups = t.table("config_groups")
    schemes = [] if groups is None else [_weights(groups, name) for name in groups.data]
    if not schemes:
        raise t.error("config_groups", "it must say how weights are packed")
    return PackedCodes(COMPRESSED_TENSORS, tuple(dict.fromkeys(schemes)))


def _weights(groups: Fields, name: str) -> tuple[int, int]:
    """(bits, inputs of a group) of one of the config_groups."""
    group = groups.table(name)
    if group is None or (w := group.table("weights")) is None:
        raise groups.error(name, "it must be an object with weights")
    group.only("format", None, "pack-quantized")
    group.only("input_activations", None)
    group.only("output_activations", None)
    _strings(group, "targets")
    w.only("num_bits", 8, 4)
    w.only("type", "int")
    w.only("dynamic", False)
    w.only("actorder", None, False, "weight", "static")  # these leave inputs in order
    size = w.get("group_size", None)
    strategy = w.get("strategy", None)
    if strategy is None:  # compressed-tensors' defaults
        strategy = "tensor" if size is None else "channel" if size == -1 else "group"
    if strategy not in ("group", "channel"):
        raise w.error("strategy", "supported: group, channel")
    return w.get("num_bits", 8), 0 if strategy == "channel" else _group(w, "group_size", size)


def _gptq(t: Fields) -> PackedCodes:
    _same(t, "checkpoint_format", "format")
    key = "format" if "format" in t.data else "checkpoint_format"
    t.only(key, GPTQ, "gptq_v2")
    t.only("is_marlin_format", False, None)
    t.only("pack_dtype", "int32")
    t.only("adapter", None)
    settings, dynamic = [t], t.table("dynamic")  # dynamic: settings by pattern of names; "-:": not packed
    for pattern in () if dynamic is None else dynamic.data:
        assert dynamic is not None
        own = None if pattern.startswith("-:") else dynamic.table(pattern)
        if own is not None:
            settings.append(Fields({**t.data, **own.data}, own.source, own.prefix))
    return PackedCodes(
        GPTQ,
        schemes=tuple(dict.fromkeys(_scheme(one, 4, 8) for one in settings)),
        symmetric=all(one.boolean("sym", False) for one in settings),
        reordered=any(one.boolean("desc_act", False) for one in settings),
        minus_one=t.get(key, GPTQ) == GPTQ,
    )


def _awq(t: Fields) -> PackedCodes:
    version = t.get("version", "gemm")
    if not isinstance(version, str) or version.lower() != "gemm":
        raise t.error("version", "supported: gemm")
    t.only("zero_point", True)
    _strings(t, "modules_to_not_convert")
    return PackedCodes(AWQ, (_scheme(t, 4),))


def _scheme(t: Fields, *bits: int) -> tuple[int, int]:
    """(bits, inputs of a group), from the keys that AutoGPTQ, GPTQModel and AutoAWQ write."""
    _same(t, "bits", "w_bit")
    _same(t, "group_size", "q_group_size")
    found = "bits" if "bits" in t.data else "w_bit" if "w_bit" in t.data else "bits"
    t.get(found)
    t.only(found, *bits)
    key = "q_group_size" if "q_group_size" in t.data else "group_size"
    size = t.get(key)
    return t.get(found), 0 if size == -1 else _group(t, key, size)


def _group(t: Fields, key: str, size: Any) -> int:
    if not _is_size(size):
        raise t.error(key, f"it must be -1 or a positive integer up to {LARGEST_BLOCK}")
    return int(size)


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST_BLOCK


def _same(t: Fields, name: str, other: str) -> None:
    """Raises ValueError if two keys for the same setting have different values."""
    if name in t.data and other in t.data and t.data[name] != t.data[other]:
        raise t.error(name, f"it contradicts {other}, {t.data[other]!r}")


def _strings(t: Fields, key: str) -> None:
    value = t.get(key, None)
    if value is not None and not (isinstance(value, list) and all(isinstance(v, str) for v in value)):
        raise t.error(key, "it must be a list of strings")
