"""From a configuration to a loaded model: which kernels, which weights."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from nextn.config import EngineConfig, model_folder
from nextn.models.base import Model
from nextn.models.config import ModelConfig
from nextn.models.dummy import dummy_checkpoint
from nextn.models.fake import FakeModel, parse_acceptance
from nextn.models.loader import fp8_names, load_checkpoint, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_prefixes, product_shapes, shared_tensors
from nextn.models.registry import model_class
from nextn.ops.cpu.library import NoLibrary, library, machine_level
from nextn.ops.registry import make_ops

log = logging.getLogger("nextn.engine")

DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


def make_model(config: EngineConfig, device: torch.device, threads: int) -> tuple[Model, str]:
    """The model, loaded, and what computes it: "cpu" (the native kernels) or "reference" (plain torch).

    Raises ValueError for options that do not go together or that the checkpoint cannot honour.
    """
    acceptance = parse_acceptance(config.model_path)
    if acceptance is not None:
        return FakeModel(acceptance, device), "reference"
    folder = model_folder(config.model_path)
    cfg = ModelConfig.from_folder(folder)
    nextn = _nextn_layers(config, cfg, folder)
    expected = expected_tensors(cfg, nextn)
    kernels = choose_kernels(config, device)
    model: Any
    if kernels == "cpu":
        dummy = config.load_format == "dummy"
        stored = frozenset() if dummy else fp8_names(folder, cfg.quantization)
        native = model_class(cfg.architecture, "cpu")
        model = native(cfg, nextn > 0, threads, config.quantization, stored)
        place, dtype, as_stored = model.place, torch.float32, model.weights.as_stored
    else:
        dtype, as_stored = DTYPES[config.dtype], frozenset()
        ops = make_ops(product_shapes(cfg), dtype, device)
        naive = config.prefill_attention == "naive"
        model = model_class(cfg.architecture)(cfg, ops, dtype, device, nextn > 0, naive)
        targets: dict[str, Tensor] = model.targets()
        assert {n: tuple(t.shape) for n, t in targets.items()} == expected

        def place(name: str, tensor: Tensor) -> None:
            targets[name].copy_(tensor)

    if config.load_format == "dummy":
        dummy_checkpoint(expected, place, config.random_seed, dtype)
    else:
        load_checkpoint(
            folder,
            expected,
            place,
            quantization=cfg.quantization,
            dtype=dtype,
            shared=shared_tensors(cfg, nextn),
            skip_prefixes=nextn_prefixes(cfg, nextn),
            as_stored=as_stored,
        )
    return model, kernels


def choose_kernels(config: EngineConfig, device: torch.device) -> str:
    """ "cpu" where the native kernels can do what the options ask for; `auto` says why it chose."""
    asked = config.kernel_backend
    obstacle = None
    if device.type != "cpu":
        obstacle = f"--device is {device.type}"
    elif config.dtype == "float32":
        obstacle = "--dtype is float32, they compute in bfloat16"
    elif config.prefill_attention == "naive":
        obstacle = "--prefill-attention is naive, they have the absorbed form only"
    else:
        try:
            library()
        except NoLibrary as e:
            obstacle = str(e)
    if asked == "cpu" and obstacle:
        raise ValueError(f"--kernel-backend cpu: the native kernels cannot serve: {obstacle}")
    if asked == "reference" or obstacle:
        if config.quantization:
            raise ValueError(
                f"--quantization {config.quantization} needs the native kernels: "
                f"{obstacle or '--kernel-backend is reference'}"
            )
        log.info("kernels: plain torch (%s)", obstacle or "asked for")
        return "reference"
    log.info("kernels: native %s (%s)", *machine_level())
    return "cpu"


def _nextn_layers(config: EngineConfig, cfg: ModelConfig, folder: Path) -> int:
    """1 if drafts are wanted and there is a module to make them, else 0.

    Raises ValueError when drafts were asked for by name and the checkpoint has no module.
    """
    if config.num_drafts == 0:
        return 0
    dummy = config.load_format == "dummy"
    stored = cfg.num_nextn_predict_layers if dummy else stored_nextn_layers(folder, cfg)
    asked = config.speculative_algorithm is not None or config.speculative_num_steps is not None
    if stored == 0 and asked:
        raise ValueError(
            f"--speculative-algorithm NEXTN: {folder} has no NextN layer to draft with; "
            "use --speculative-num-steps 0"
        )
    if stored > 1:
        log.info("the checkpoint has %d NextN layers; the first drafts at every depth", stored)
    return min(stored, 1)
