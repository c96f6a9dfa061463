"""Makes a loaded model from a configuration: its layers, drafter and weight formats, and loads weights. Which
kernels it has is chosen in `nextn.engine.kernels`."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from nextn.config import EngineConfig, model_folder
from nextn.distributed.group import Alone
from nextn.distributed.ranks import Ranks
from nextn.draft import AUTO_STEPS
from nextn.engine.ep_rank import EPRank
from nextn.engine.few_bits_log import log_blocks, log_few_bits, say_what_is_widened
from nextn.engine.kernels import choose_kernels, dtype_of, quantize_format, reads_fp8, value_bytes, ways_of
from nextn.engine.memory import bounded_context, check_memory
from nextn.engine.world import make_torch_world, make_world, shares_experts, sharing_option
from nextn.families.config import ModelConfig
from nextn.families.files import first_names
from nextn.layers.replicas import ExpertParallel
from nextn.models.base import Model
from nextn.models.cuda import CudaModel
from nextn.models.draft_folder import OPTION, DraftFolder
from nextn.models.dummy import dummy_checkpoint
from nextn.models.fake import FakeModel, parse_acceptance
from nextn.models.fp8 import block_layers
from nextn.models.loader import ALLOW_NON_FINITE, load_checkpoint, stored_formats, stored_nextn_layers
from nextn.models.names import (
    cut_prefixes,
    expected_tensors,
    nextn_prefixes,
    nextn_tensors,
    product_shapes,
    shared_tensors,
)
from nextn.models.native import NativeModel
from nextn.models.native_weights import Drafting
from nextn.models.sizes import check_target, checked_config
from nextn.models.token_map import read_token_map
from nextn.models.torch_model import TorchModel
from nextn.ops.cpu.library import choose_level
from nextn.ops.cpu.reading import non_temporal
from nextn.ops.registry import make_ops
from nextn.ops.stored import Format

# Maximum bytes of bf16 weights that are assumed to fit in a CPU's caches.
CACHED = 64 << 20

log = logging.getLogger("nextn.engine")

DISPATCH_OPTION = "--ep-dispatch-dtype fp8"


class Checkpoint(NamedTuple):
    """What a model is made and loaded from. target: the model's config; cfg: the same with as many NextN
    modules as the drafter's folder has. own: number of modules that are loaded from the model's own folder;
    nextn: of all modules. expected: all tensors, by name, with their shapes. draft: the drafter's folder, if
    it is not the model's. stored: formats of matrices that are not plain. allowed: tokens that may be
    drafted; None: all."""

    folder: Path
    target: ModelConfig
    cfg: ModelConfig
    own: int
    nextn: int
    expected: Mapping[str, tuple[int, ...]]
    draft: DraftFolder | None
    stored: Mapping[str, Format]
    allowed: tuple[int, ...] | None


class Places(NamedTuple):
    """Where the weights go. place: takes a tensor over. dtype: of tensors that are dequantized. rows: which
    rows the model wants, for tensors that it does not want completely. as_stored: names of tensors that are
    not dequantized."""

    place: Callable[..., None]
    dtype: torch.dtype
    rows: Mapping[str, range]
    as_stored: Collection[str]


def make_model(
    config: EngineConfig,
    device: torch.device,
    threads: int,
    ranks: Ranks | None = None,
    ep_rank: EPRank | None = None,
) -> tuple[Model, str]:
    """(the loaded model, its kernels, see `nextn.engine.kernels`).

    Raises ValueError for options that are incompatible or that the checkpoint does not support.
    """
    acceptance = parse_acceptance(config.model_path)
    if acceptance is not None:
        return _fake(config, acceptance, device), "reference"
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
    if config.ep_dispatch_dtype == "fp8" and not cfg.n_routed_experts:
        raise ValueError(f"{DISPATCH_OPTION}: {cfg.architecture} here has no routed experts; leave it out")
    kernels = choose_kernels(config, device)
    if shares_experts(config) and kernels != "cpu":
        _check_shared_on_torch(config, device, ranks)
    assert ranks is None or device.type == "cpu" or ranks.gpus is not None
    stored = {} if dummy else stored_formats(folder, target.quantization)
    check_memory(config, cfg, nextn, value_bytes(config, stored, kernels, device), device)
    if not dummy:
        check_target(folder, target)
    expected = expected_tensors(cfg, nextn)
    token_map = _token_map(config, draft)
    allowed = read_token_map(token_map, cfg.vocab_size) if token_map is not None and nextn else None
    if draft is not None:
        own_names = nextn_tensors(cfg, nextn)
        stored = {name: format for name, format in stored.items() if name not in own_names}
        stored |= draft.stored_formats(cfg, nextn)
    source = Checkpoint(folder, target, cfg, own, nextn, expected, draft, stored, allowed)
    model: NativeModel | TorchModel
    if kernels == "cpu":
        model, to = _native(config, source, threads, ranks, ep_rank)
    else:
        model, to = _torch(config, source, kernels, device, ranks)
    if dummy:
        on = torch.device("cpu") if kernels == "cpu" else device
        dummy_checkpoint(cfg.names, expected, to.place, config.random_seed, to.dtype, to.rows, on)
    else:
        _load(config, source, to, kernels)
    return model, kernels


def _fake(config: EngineConfig, acceptance: tuple[float, ...], device: torch.device) -> FakeModel:
    mtp_folder = config.speculation.mtp and config.speculative_draft_model_path is not None
    cut = config.num_hidden_layers_override is not None
    cpu_isa = f"--cpu-isa {config.cpu_isa} needs the native kernels"
    for wrong, option, why in (
        (mtp_folder, OPTION, "scripts its own drafts; leave it out"),
        (shares_experts(config), sharing_option(config), "has no experts"),
        (config.ep_dispatch_dtype != "bf16", DISPATCH_OPTION, "has no experts; leave it out"),
        (cut, "--num-hidden-layers-override", "has no layers; leave it out"),
        (config.cpu_isa != "auto", cpu_isa, "runs none; leave it out"),
    ):
        if wrong:
            raise ValueError(f"{option}: --model-path {config.model_path} {why}")
    fake = FakeModel(acceptance, device)
    check_memory(config, bounded_context(config, fake.config, device), 1, 4, device)
    return fake


def _native(
    config: EngineConfig, source: Checkpoint, threads: int, ranks: Ranks | None, ep_rank: EPRank | None
) -> tuple[NativeModel, Places]:
    cfg, made = source.cfg, quantize_format(config)
    drafting = Drafting(_coarse_drafts(config, cfg), source.allowed)
    level, _ = choose_level(config.cpu_isa)
    world = make_world(config, cfg, ep_rank, ranks) if shares_experts(config) else None
    model = NativeModel(
        cfg, source.nextn, threads, made, source.stored, drafting, level, ranks, world,
        ways_of(config, level), config.ep_dispatch_dtype == "fp8", partial(non_temporal, level),
    )  # fmt: skip
    weights = model.weights
    if made is not None and (others := weights.int8_fallbacks):
        log.info(
            "--quantization w4a16: %d matrices are in int8, for their inputs are not groups of %d: %s",
            len(others), made.group, first_names(others),
        )  # fmt: skip
    return model, Places(weights.place, torch.float32, weights.rows, weights.as_stored)


def _torch(
    config: EngineConfig, source: Checkpoint, kernels: str, device: torch.device, ranks: Ranks | None
) -> tuple[TorchModel, Places]:
    cfg, nextn = source.cfg, source.nextn
    dtype = dtype_of(config.dtype, kernels)
    ops = make_ops(product_shapes(cfg), dtype, device, kernels)
    blocks = block_layers(cfg, nextn, source.stored) if reads_fp8(kernels, device) else {}
    log_blocks(source.stored, len(blocks), cfg.num_hidden_layers + nextn)
    group, experts = Alone() if ranks is None else ranks.group, None
    if shares_experts(config):
        assert ranks is not None
        everyone = make_torch_world(config, cfg, ranks)
        group = everyone.attention
        experts = ExpertParallel(everyone, everyone.share.placement, static=not everyone.dynamic)
    model = (CudaModel if kernels == "triton" else TorchModel)(
        cfg, ops, dtype, device, nextn, config.prefill_attention == "naive", source.allowed, group, experts,
        blocks, config.ep_dispatch_dtype == "fp8",
    )  # fmt: skip
    if isinstance(model, CudaModel):
        model.eager = config.disable_cuda_graph
    rows = model.rows()
    assert {n: tuple(t.shape) for n, t in model.targets().items()} == {
        n: (len(rows.get(n, range(shape[0]))), *shape[1:]) for n, shape in source.expected.items()
    }
    return model, Places(model.place, dtype, rows, model.as_stored)


def _load(config: EngineConfig, source: Checkpoint, to: Places, kernels: str) -> None:
    folder, target, cfg, own, nextn, expected, draft, stored, _ = source
    allow = config.allow_non_finite_weights
    report = load_checkpoint(
        folder,
        expected_tensors(target, own),
        to.place,
        quantization=target.quantization,
        dtype=to.dtype,
        shared=shared_tensors(target, own),
        skip_prefixes=nextn_prefixes(target, own) + cut_prefixes(target),
        as_stored=to.as_stored,
        allow_non_finite=allow,
        rows=to.rows,
    )
    log_few_bits({n: f for n, f in stored.items() if n in expected}, to.as_stored, report)
    non_finite, widened = report.non_finite, report.widened
    if draft is not None:
        report = draft.load(cfg, nextn, to.place, to.dtype, to.as_stored, allow, to.rows)
        non_finite, widened = non_finite + report.non_finite, widened + report.widened
    if kernels == "cpu":
        say_what_is_widened(cfg, nextn, stored, to.as_stored, widened)
    if non_finite:
        names = first_names(non_finite)
        log.warning(
            "%s: %d tensors with NaN or infinite values: %s", ALLOW_NON_FINITE, len(non_finite), names
        )


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


def _coarse_drafts(config: EngineConfig, cfg: ModelConfig) -> bool:
    """Whether the native drafter's weights are held in int8. By default yes if a draft reads them from
    memory, where half the bytes take half the time. In a cache, widening them would take more time than it
    saves."""
    asked = config.speculative_draft_model_quantization
    if asked is not None:
        return asked == "w8a16"
    module = sum(math.prod(shape) for shape in nextn_tensors(cfg, 1).values())
    return 2 * (module + cfg.vocab_size * cfg.hidden_size) > CACHED


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
