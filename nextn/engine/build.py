"""From a configuration to the parts of an engine: device, weights, KV pool, scheduler."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from nextn.config import EngineConfig, model_folder, usable_cores
from nextn.engine.runner import Runner
from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.pool import KVPool
from nextn.kvcache.radix import RadixCache
from nextn.models.base import Model
from nextn.models.config import ModelConfig
from nextn.models.dummy import dummy_checkpoint
from nextn.models.fake import FakeModel, parse_acceptance
from nextn.models.loader import load_checkpoint, stored_nextn_layers
from nextn.models.names import expected_tensors, nextn_prefixes, product_shapes, shared_tensors
from nextn.models.registry import model_class
from nextn.ops.registry import make_ops
from nextn.scheduler.scheduler import Scheduler
from nextn.speculative.drafter import Drafter, MTPDrafter, NoDrafter

log = logging.getLogger("nextn.engine")

CPU_KV_TOKENS = 32768
DTYPES = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class Built:
    model: Model
    executor: Runner
    scheduler: Scheduler
    eos_ids: frozenset[int]
    context_length: int
    num_drafts: int
    startup: Mapping[str, object]


def build(config: EngineConfig) -> Built:
    """Raises ValueError for options that do not go together or that the model cannot honour."""
    device = _device(config.device)
    # A core that is taken away from one thread stops all of them at the next barrier, so one is left over.
    torch.set_num_threads(config.threads or max(1, usable_cores() - 1))
    begin = time.perf_counter()
    model = _model(config, device)
    seconds = time.perf_counter() - begin
    cfg = model.config
    num_drafts = config.num_drafts if model.can_draft else 0
    layers = cfg.num_hidden_layers + (num_drafts > 0)
    entry = model.cache_width * torch.empty((), dtype=model.dtype).element_size()
    pages = _pages(config, layers * entry, device)
    pool = KVPool(layers, pages + 1, config.page_size, model.cache_width, model.dtype, device)
    cache = NaiveCache() if config.disable_radix_cache else RadixCache(config.page_size)
    kv = KVManager(pages + 1, config.page_size, cache)
    drafter: Drafter = MTPDrafter(model, pool) if num_drafts else NoDrafter()
    scheduler = Scheduler(
        kv,
        token_budget=config.chunked_prefill_size,
        max_running=config.max_running_requests,
        num_drafts=num_drafts,
        eos_ids=frozenset(cfg.eos_token_ids),
    )
    slots = pages * config.page_size
    startup: dict[str, object] = {
        "model": config.model_path,
        "architecture": cfg.architecture,
        "device": device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "threads": torch.get_num_threads(),
        "weight_bytes": model.weight_bytes,
        "load_seconds": round(seconds, 3),
        "kv_tokens": slots,
        "kv_bytes_target": slots * cfg.num_hidden_layers * entry,
        "kv_bytes_draft": slots * (layers - cfg.num_hidden_layers) * entry,
        "drafts": num_drafts,
        "prefix_cache": "off" if config.disable_radix_cache else "radix",
    }
    context = min(_context_length(config, cfg), slots)
    return Built(
        model,
        Runner(model, pool, drafter, config.prefill_attention == "naive"),
        scheduler,
        frozenset(cfg.eos_token_ids),
        context,
        num_drafts,
        startup,
    )


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


def _context_length(config: EngineConfig, cfg: ModelConfig) -> int:
    longest = cfg.max_position_embeddings
    if config.context_length is not None and config.context_length > longest:
        raise ValueError(f"--context-length is {config.context_length}: the model's own longest is {longest}")
    return config.context_length or longest


def _pages(config: EngineConfig, bytes_per_token: int, device: torch.device) -> int:
    tokens = config.kv_cache_tokens
    if tokens is None and device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        tokens = int(free * config.mem_fraction_static) // bytes_per_token
    elif tokens is None:
        tokens = CPU_KV_TOKENS
    pages = tokens // config.page_size
    if pages < 1:
        raise ValueError(
            f"the KV pool would hold {tokens} tokens, less than one page of {config.page_size}; "
            "raise --kv-cache-tokens or --mem-fraction-static"
        )
    return pages


def _model(config: EngineConfig, device: torch.device) -> Model:
    acceptance = parse_acceptance(config.model_path)
    if acceptance is not None:
        return FakeModel(acceptance, device)
    folder = model_folder(config.model_path)
    cfg = ModelConfig.from_folder(folder)
    dtype = DTYPES[config.dtype]
    nextn = _nextn_layers(config, cfg, folder)
    expected = expected_tensors(cfg, nextn)
    ops = make_ops(product_shapes(cfg), dtype, device)
    model = model_class(cfg.architecture)(cfg, ops, dtype, device, nextn > 0)
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
        )
    return model  # type: ignore[no-any-return]


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
