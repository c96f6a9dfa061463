"""Chooses an engine's kernels from its options, and the formats that they compute in.

Kernels are "cpu" (the native kernels), "triton", or "reference" (plain torch)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

import torch

from nextn.config import EngineConfig
from nextn.engine.device import engine_device
from nextn.models.fake import parse_acceptance
from nextn.ops.cpu.coded import by_bytes
from nextn.ops.cpu.interface import BY_BYTES
from nextn.ops.cpu.library import NoLibrary, choose_level, library
from nextn.ops.cpu.ways import Ways
from nextn.ops.registry import triton_obstacle
from nextn.ops.stored import FP8, INT4, W8A16, Format

log = logging.getLogger("nextn.engine")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AUTO_DTYPES = {"reference": torch.float32, "triton": torch.bfloat16, "cpu": torch.bfloat16}  # by kernels

NAMES = {"cpu": "native", "triton": "Triton"}  # of kernels, in messages


def choose_kernels(config: EngineConfig, device: torch.device) -> str:
    """ "cpu" or "triton" if these kernels support the options, else "reference". Logs the reason."""
    asked = config.kernel_backend
    own = "triton" if device.type == "cuda" else "cpu"  # the device's
    obstacle = _obstacle(config, device, _asked(config, own))
    if asked not in ("auto", "reference") and obstacle:
        raise ValueError(f"--kernel-backend {asked}: the {NAMES[asked]} kernels cannot serve: {obstacle}")
    chosen = "reference" if obstacle else own
    why = obstacle or f"--kernel-backend is {chosen}"
    if chosen != "cpu":
        of_drafts = config.speculative_draft_model_quantization
        for option, value, served in (
            ("--speculative-draft-model-quantization", of_drafts, "unquant"),
            ("--quantization", config.quantization, None),
            ("--gguf-activations", config.gguf_activations.replace("bf16", "auto"), "auto"),
            ("--cpu-isa", config.cpu_isa, "auto"),
        ):
            if value not in (None, served):
                raise ValueError(f"{option} {value} needs the native kernels: {why}")
    if chosen == "reference":
        log.info("kernels: plain torch (%s)", obstacle)
    elif chosen == "triton":
        log.info("kernels: Triton (%s)", torch.cuda.get_device_name(device))
    else:
        log.info("kernels: native %s (%s)", *choose_level(config.cpu_isa))
    return chosen


def runs_on_torch(config: EngineConfig) -> bool:
    """Whether `nextn.engine.model.make_model` would make the torch model. Raises ValueError for a device or a
    level that cannot be used."""
    device = engine_device(config.device)
    if device.type == "cuda" or parse_acceptance(config.model_path) is not None:
        return device.type == "cuda"
    return _obstacle(config, device, _asked(config, "cpu")) is not None


def _asked(config: EngineConfig, own: str) -> str:
    """The kernels that the options ask for. own: the device's kernels."""
    return own if config.kernel_backend == "auto" else config.kernel_backend


def _obstacle(config: EngineConfig, device: torch.device, kernels: str) -> str | None:
    """Why these kernels cannot be used; None if they can."""
    if kernels == "reference":
        return "--kernel-backend is reference"
    if device.type != ("cuda" if kernels == "triton" else "cpu"):
        return f"--device is {device.type}"
    if config.prefill_attention == "naive":
        return "--prefill-attention is naive, they have the absorbed form only"
    if kernels == "triton":
        return triton_obstacle()
    if config.dtype == "float32":
        return "--dtype is float32, they compute in bfloat16"
    try:
        library(choose_level(config.cpu_isa)[0])
    except NoLibrary as e:
        log.warning("nextn runs without its native CPU kernels, about ten times slower: %s", e)
        return str(e)
    return None


def dtype_of(asked: str, kernels: str) -> torch.dtype:
    """The dtype of these kernels when --dtype is `asked`."""
    return AUTO_DTYPES[kernels] if asked == "auto" else DTYPES[asked]


def ways_of(config: EngineConfig, level: str) -> Callable[[int], int]:
    """How each kind of weights is multiplied. If an engine has ranks on several machines, or if --cpu-isa
    names a level, always in the level's own way. Otherwise in the way that is fastest on this machine. A
    prefill and a decode server choose as a server alone does, and compare what they chose
    (`nextn.disaggregation.identity`).

    Raises ValueError if this machine does not support --gguf-activations."""
    asked, free = config.gguf_activations, config.one_machine and config.cpu_isa == "auto"
    in_bytes = by_bytes(level) if asked == "int8" else frozenset()
    if asked == "int8" and not in_bytes:
        why = "has no such kernels" if level == "portable" else "needs AVX512-VNNI for it"
        raise ValueError(f"--gguf-activations int8: level {level} {why}; use auto or bf16")
    measured = Ways(level, rounded=asked != "bf16").of if free else lambda kind: 0
    return lambda kind: BY_BYTES if kind in in_bytes else measured(kind)


def quantize_format(config: EngineConfig) -> Format | None:
    """The format to which --quantization converts the layers' matrices."""
    if config.quantization == "w4a16":
        return Format(INT4, config.int4_group, zeros=True)
    return W8A16 if config.quantization == "w8a16" else None


def reads_fp8(kernels: str, device: torch.device) -> bool:
    """Whether these kernels, if not the CPU's, compute from e4m3 blocks on this device. Older GPUs cannot
    convert e4m3."""
    return kernels == "triton" and torch.cuda.get_device_capability(device) >= (8, 9)


def value_bytes(
    config: EngineConfig, stored: Mapping[str, Format], kernels: str, device: torch.device
) -> float:
    """Minimum bytes of one weight in memory."""
    if kernels != "cpu":
        plain = dtype_of(config.dtype, kernels).itemsize
        in_blocks = any(format.name == FP8 for format in stored.values()) and reads_fp8(kernels, device)
        return 1.0 if in_blocks else plain
    asked = {"w8a16": 1.0, "w4a16": 0.5}.get(config.quantization or "", 2.0)
    return min([asked, *(format.bits / 8 for format in set(stored.values()))])
