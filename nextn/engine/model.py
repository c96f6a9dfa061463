"""Makes a loaded model from a configuration: chooses kernels and weight formats, and loads weights."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nextn.config import EngineConfig, model_folder
from nextn.distributed.group import Alone
from nextn.distributed.ranks import Ranks
from nextn.draft import AUTO_STEPS
from nextn.engine.device import engine_device
from nextn.engine.ep_rank import EPRank
from nextn.engine.few_bits_log import log_blocks, log_few_bits, say_what_is_widened
from nextn.engine.memory import bounded_context, check_memory
from nextn.engine.world import make_torch_world, make_world, shares_experts, sharing_option
from nextn.families.config import ModelConfig
from nextn.families.files import first_names
from nextn.layers.replicas import ExpertParallel
from nextn.models.base import Model
from nextn.models.draft_folder import OPTION, DraftFolder
from nextn.models.dummy import dummy_checkpoint
from nextn.models.fake import FakeModel, parse_acceptance
from nextn.models.fp8 import block_layers
from nextn.models.loader import (
    ALLOW_NON_FINITE,
    load_checkpoint,
    stored_formats,
    stored_nextn_layers,
)
from nextn.models.names import (
    cut_prefixes,
    expected_tensors,
    nextn_prefixes,
    nextn_tensors,
    product_shapes,
    shared_tensors,
)
from nextn.models.native_weights import Drafting
from nextn.models.registry import CLASSES, model_class
from nextn.models.sizes import check_target, checked_config
from nextn.models.token_map import read_token_map
from nextn.ops.cpu.coded import by_bytes
from nextn.ops.cpu.library import BY_BYTES, NoLibrary, choose_level, library
from nextn.ops.cpu.ways import Ways
from nextn.ops.registry import make_ops, triton_obstacle
from nextn.ops.stored import FP8, INT4, W8A16, Format

# Maximum bytes of bf16 weights that are assumed to fit in a CPU's caches.
CACHED = 64 << 20

log = logging.getLogger("nextn.engine")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
AUTO_DTYPES = {"reference": torch.float32, "triton": torch.bfloat16, "cpu": torch.bfloat16}  # by kernels

DISPATCH_OPTION = "--ep-dispatch-dtype fp8"

NAMES = {"cpu": "native", "triton": "Triton"}  # of kernels, in messages


def make_model(
    config: EngineConfig,
    device: torch.device,
    threads: int,
    ranks: Ranks | None = None,
    ep_rank: EPRank | None = None,
) -> tuple[Model, str]:
    """(the loaded model, its kernels: "cpu" (the native kernels), "triton" or "reference" (plain torch)).

    Raises ValueError for options that are incompatible or that the checkpoint does not support.
    """
    acceptance = parse_acceptance(config.model_path)
    if acceptance is not None:
        if config.speculation.mtp and config.speculative_draft_model_path is not None:
            raise ValueError(
                f"{OPTION}: --model-path {config.model_path} scripts its own drafts; leave it out"
            )
        if shares_experts(config):
            raise ValueError(f"{sharing_option(config)}: --model-path {config.model_path} has no experts")
        if config.ep_dispatch_dtype != "bf16":
            raise ValueError(
                f"{DISPATCH_OPTION}: --model-path {config.model_path} has no experts; leave it out"
            )
        if config.num_hidden_layers_override is not None:
            raise ValueError(
                f"--num-hidden-layers-override: --model-path {config.model_path} has no layers; leave it out"
            )
        if config.cpu_isa != "auto":
            raise ValueError(
                f"--cpu-isa {config.cpu_isa} needs the native kernels: "
                f"--model-path {config.model_path} runs none; leave it out"
            )
        fake = FakeModel(acceptance, device)
        check_memory(config, bounded_context(config, fake.config, device), 1, 4, device)
        return fake, "reference"
    folder = model_folder(config.model_path)
    dummy = config.load_format == "dummy"
    whole = ModelConfig.from_folder(folder) if dummy else checked_config(folder)
    cfg = target = bounded_context(config, _cut(config, whole), device)
    draft = _draft_folder(config, target)
    if draft is None:
        own = nextn = _nextn_layers(config, target, folder)
    else:
        own, nextn = 0, min(draft.layers, config.speculation.num_steps)
        cfg = dataclasses.replace(target, num_nextn_predict_layers=draft.layers)
    if cfg.gqa is not None and config.prefill_attention == "naive":
        raise ValueError(
            f"--prefill-attention naive: {cfg.architecture} has one form of attention only; leave it out"
        )
    fp8_rows = config.ep_dispatch_dtype == "fp8"
    if fp8_rows and not cfg.n_routed_experts:
        raise ValueError(f"{DISPATCH_OPTION}: {cfg.architecture} here has no routed experts; leave it out")
    kernels = choose_kernels(config, device, cfg.architecture)
    if shares_experts(config) and kernels != "cpu":
        _check_shared_on_torch(config, device, ranks)
    assert ranks is None or device.type == "cpu" or ranks.gpus is not None
    stored = {} if dummy else stored_formats(folder, target.quantization)
    check_memory(config, cfg, nextn, _value_bytes(config, stored, kernels, device), device)
    if not dummy:
        check_target(folder, target)
    expected = expected_tensors(cfg, nextn)
    token_map = _token_map(config, draft)
    allowed = read_token_map(token_map, cfg.vocab_size) if token_map is not None and nextn else None
    if draft is not None:
        own_names = nextn_tensors(cfg, nextn)
        stored = {name: format for name, format in stored.items() if name not in own_names}
        stored |= draft.stored_formats(cfg, nextn)
    model: Any
    if kernels == "cpu":
        native = model_class(cfg.architecture, "cpu")
        drafting = Drafting(_coarse_drafts(config, cfg), allowed)
        level, _ = choose_level(config.cpu_isa)
        world = make_world(config, cfg, ep_rank, ranks) if shares_experts(config) else None
        made = quantize_format(config)
        way = ways_of(config, level)
        model = native(cfg, nextn, threads, made, stored, drafting, level, ranks, world, way, fp8_rows)
        if made is not None and (others := model.weights.not_whole_groups):
            log.info(
                "--quantization w4a16: %d matrices are in int8, for their inputs are not groups of %d: %s",
                len(others), made.group, first_names(others),
            )  # fmt: skip
        place, dtype, as_stored = model.place, torch.float32, model.weights.as_stored
        rows = model.weights.rows
    else:
        dtype = dtype_of(config.dtype, kernels)
        ops = make_ops(product_shapes(cfg), dtype, device, kernels)
        naive = config.prefill_attention == "naive"
        blocks = block_layers(cfg, nextn, stored) if reads_fp8(kernels, device) else {}
        log_blocks(stored, len(blocks), cfg.num_hidden_layers + nextn)
        group, experts = Alone() if ranks is None else ranks.group, None
        if shares_experts(config):
            assert ranks is not None
            everyone = make_torch_world(config, cfg, ranks)
            group = everyone.attention
            experts = ExpertParallel(everyone, everyone.share.placement, static=not everyone.dynamic)
        model = model_class(cfg.architecture, kernels)(
            cfg, ops, dtype, device, nextn, naive, allowed, group, experts, blocks, fp8_rows
        )
        if kernels == "triton":
            model.eager = config.disable_cuda_graph
        place, rows, as_stored = model.place, model.rows(), model.as_stored
        assert {n: tuple(t.shape) for n, t in model.targets().items()} == {
            n: (len(rows.get(n, range(shape[0]))), *shape[1:]) for n, shape in expected.items()
        }

    if dummy:
        on = torch.device("cpu") if kernels == "cpu" else device
        dummy_checkpoint(cfg.names, expected, place, config.random_seed, dtype, rows, on)
        return model, kernels
    allow = config.allow_non_finite_weights
    report = load_checkpoint(
        folder,
        expected_tensors(target, own),
        place,
        quantization=target.quantization,
        dtype=dtype,
        shared=shared_tensors(target, own),
        skip_prefixes=nextn_prefixes(target, own) + cut_prefixes(target),
        as_stored=as_stored,
        allow_non_finite=allow,
        rows=rows,
    )
    log_few_bits({n: f for n, f in stored.items() if n in expected}, as_stored, report)
    non_finite, widened = report.non_finite, report.widened
    if draft is not None:
        report = draft.load(cfg, nextn, place, dtype, as_stored, allow, rows)
        non_finite, widened = non_finite + report.non_finite, widened + report.widened
    if kernels == "cpu":
        say_what_is_widened(cfg, nextn, stored, as_stored, widened)
    if non_finite:
        names = first_names(non_finite)
        log.warning(
            "%s: %d tensors with NaN or infinite values: %s", ALLOW_NON_FINITE, len(non_finite), names
        )
    return model, kernels


def runs_on_torch(config: EngineConfig) -> bool:
    """Whether `make_model` would make the torch model. Raises the errors of `make_model`."""
    device = engine_device(config.device)
    if device.type == "cuda" or parse_acceptance(config.model_path) is not None:
        return device.type == "cuda"
    architecture = ModelConfig.from_folder(model_folder(config.model_path)).architecture
    return _obstacle(config, device, architecture, _asked(config, "cpu")) is not None


def _check_shared_on_torch(config: EngineConfig, device: torch.device, ranks: Ranks | None) -> None:
    only, runs = "only the native kernels do this so far", f"--kernel-backend {config.kernel_backend}"
    without = f"and --device {device.type} with {runs} runs without them"
    if ranks is None or ranks.gpus is None:
        raise ValueError(f"{sharing_option(config)} with --nnodes {config.nnodes}: {only}, {without}")
    if config.enable_two_batch_overlap:
        raise ValueError(f"--enable-two-batch-overlap: {only}, {without}; leave it out")


def _cut(config: EngineConfig, cfg: ModelConfig) -> ModelConfig:
    """The model's config with --num-hidden-layers-override applied."""
    layers = config.num_hidden_layers_override
    if layers is None:
        return cfg
    if layers > cfg.num_hidden_layers:
        raise ValueError(
            f"--num-hidden-layers-override {layers}: the model has only {cfg.num_hidden_layers} layers"
        )
    log.warning("only %d of the model's %d layers are computed", layers, cfg.num_hidden_layers)
    return cfg.cut(layers)


def ways_of(config: EngineConfig, level: str) -> Callable[[int], int]:
    """How each kind of weights is multiplied. With several machines, or if --cpu-isa names a level, always in
    the level's own way. Otherwise in the way that is fastest on this machine.

    Raises ValueError if this machine does not support --gguf-activations."""
    asked, free = config.gguf_activations, config.one_machine and config.cpu_isa == "auto"
    able = by_bytes(level)
    if asked == "int8" and not able:
        raise ValueError("--gguf-activations int8: the CPU has no AVX512-VNNI; use auto or bf16")
    inputs_in_bytes = able if asked == "int8" or (asked == "auto" and free) else frozenset()
    measured = Ways(level).of if free else lambda kind: 0
    return lambda kind: BY_BYTES if kind in inputs_in_bytes else measured(kind)


def quantize_format(config: EngineConfig) -> Format | None:
    """The format to which --quantization converts the layers' matrices."""
    if config.quantization == "w4a16":
        return Format(INT4, config.int4_group, zeros=True)
    return W8A16 if config.quantization == "w8a16" else None


def reads_fp8(kernels: str, device: torch.device) -> bool:
    """Whether these kernels, if not the CPU's, compute from e4m3 blocks on this device. Older GPUs cannot
    convert e4m3."""
    return kernels == "triton" and torch.cuda.get_device_capability(device) >= (8, 9)


def _value_bytes(
    config: EngineConfig, stored: Mapping[str, Format], kernels: str, device: torch.device
) -> float:
    """Minimum bytes of one weight in memory."""
    if kernels != "cpu":
        plain = dtype_of(config.dtype, kernels).itemsize
        in_blocks = any(format.name == FP8 for format in stored.values()) and reads_fp8(kernels, device)
        return 1.0 if in_blocks else plain
    asked = {"w8a16": 1.0, "w4a16": 0.5}.get(config.quantization or "", 2.0)
    return min([asked, *(format.bits / 8 for format in set(stored.values()))])


def _coarse_drafts(config: EngineConfig, cfg: ModelConfig) -> bool:
    """Whether the native drafter's weights are held in int8. By default yes if a draft reads them from
    memory, where half the bytes take half the time. In a cache, widening them would take more time than it
    saves."""
    asked = config.speculative_draft_model_quantization
    if asked is not None:
        return asked == "w8a16"
    module = sum(math.prod(shape) for shape in nextn_tensors(cfg, 1).values())
    return 2 * (module + cfg.vocab_size * cfg.hidden_size) > CACHED


def dtype_of(asked: str, kernels: str) -> torch.dtype:
    """The dtype of these kernels when --dtype is `asked`."""
    return AUTO_DTYPES[kernels] if asked == "auto" else DTYPES[asked]


def choose_kernels(config: EngineConfig, device: torch.device, architecture: str | None = None) -> str:
    """ "cpu" or "triton" if these kernels support the options and the architecture, if one is given; else
    "reference". `auto` logs the reason of its choice."""
    asked = config.kernel_backend
    own = "triton" if device.type == "cuda" else "cpu"  # the device's
    obstacle = _obstacle(config, device, architecture, _asked(config, own))
    if asked not in ("auto", "reference") and obstacle:
        raise ValueError(f"--kernel-backend {asked}: the {NAMES[asked]} kernels cannot serve: {obstacle}")
    chosen = "reference" if obstacle else own
    why = obstacle or f"--kernel-backend is {chosen}"
    if chosen != "cpu":
        for option, value, served in (
            (
                "--speculative-draft-model-quantization",
                config.speculative_draft_model_quantization,
                "unquant",
            ),
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


def _asked(config: EngineConfig, own: str) -> str:
    """The kernels that the options ask for. own: the device's kernels."""
    return own if config.kernel_backend == "auto" else config.kernel_backend


def _obstacle(
    config: EngineConfig, device: torch.device, architecture: str | None, kernels: str
) -> str | None:
    """Why these kernels cannot be used; None if they can."""
    if kernels == "reference":
        return "--kernel-backend is reference"
    if device.type != ("cuda" if kernels == "triton" else "cpu"):
        return f"--device is {device.type}"
    if architecture is not None and kernels not in CLASSES[architecture]:
        return f"they have no {architecture} yet"
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


def _draft_folder(config: EngineConfig, target: ModelConfig) -> DraftFolder | None:
    """The folder of the MTP layer, if it is not the target's. Raises ValueError."""
    path = config.drafter_path
    if path is None or not config.speculation.mtp:
        return None
    if config.load_format == "dummy":
        raise ValueError(f"{OPTION} {path}: its weights are not read with --load-format dummy; leave one out")
    draft = DraftFolder.open(model_folder(path), target)
    log.info("drafts come from the NextN layer in %s", draft.folder)
    return draft


def _token_map(config: EngineConfig, draft: DraftFolder | None) -> Path | None:
    if config.speculative_token_map is not None:
        return Path(config.speculative_token_map)
    own = None if draft is None else draft.folder / "token_map.json"
    return own if own is not None and own.is_file() else None


def own_nextn_layers(config: EngineConfig, cfg: ModelConfig, folder: Path) -> int:
    """Number of NextN modules in the model's own checkpoint."""
    dummy = config.load_format == "dummy"
    return cfg.num_nextn_predict_layers if dummy else stored_nextn_layers(folder, cfg)


def _nextn_layers(config: EngineConfig, cfg: ModelConfig, folder: Path) -> int:
    """How many of the checkpoint's modules draft: one for each depth, as far as there are modules.

    Raises ValueError if drafts are required by an option and the checkpoint has no module.
    """
    if not config.speculation.mtp:
        return 0
    stored = own_nextn_layers(config, cfg, folder)
    asked = config.speculative_algorithm is not None or config.speculative_num_steps not in (None, AUTO_STEPS)
    if stored == 0 and asked:
        algorithm = config.speculative_algorithm or "NEXTN"
        raise ValueError(
            f"--speculative-algorithm {algorithm}: {folder} has no NextN layer to draft with; "
            f"use {OPTION}, or --speculative-num-steps 0"
        )
    return min(stored, config.speculation.num_steps)
