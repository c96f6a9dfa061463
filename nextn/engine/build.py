"""From a configuration to the parts of an engine: device, weights, KV pool, scheduler."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch

from nextn.config import EngineConfig, usable_cores
from nextn.draft import Shape
from nextn.engine.logprobs import context_cost, score_cost
from nextn.engine.memory import CPU_KV_TOKENS
from nextn.engine.model import make_model
from nextn.engine.runner import Runner
from nextn.engine.sampler import draw
from nextn.engine.step_cost_file import StepCostFile
from nextn.engine.step_timing import time_steps
from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.pool import KVPool
from nextn.kvcache.radix import RadixCache
from nextn.models.base import Chains, Model
from nextn.models.fake import FakeModel
from nextn.ops.cpu.draw import draw as native_draw
from nextn.ops.cpu.library import choose_level, library
from nextn.ops.cpu.weights import Arena
from nextn.scheduler.scheduler import Scheduler
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.worth import Worth
from nextn.speculative.drafter import Drafter, MTPDrafter, NoDrafter
from nextn.speculative.layered import LayeredDrafter
from nextn.speculative.mixed_drafter import MixedDrafter
from nextn.speculative.ngram_drafter import NGramDrafter

NGRAM_DRAFTERS: dict[str | None, str] = {"NGRAM": "n-grams", "NEXTN+NGRAM": "MTP and n-grams"}  # by algorithm


@dataclass(frozen=True)
class Built:
    model: Model
    executor: Runner
    scheduler: Scheduler
    eos_ids: frozenset[int]
    context_length: int
    num_drafts: int  # at most
    auto_depth: bool
    remember: Callable[[], None]  # keeps for the next start what automatic depth has learnt
    startup: Mapping[str, object]


def build(config: EngineConfig) -> Built:
    """Raises ValueError for options that do not go together or that the model cannot honour."""
    device = _device(config.device)
    # A core that is taken away from one of torch's threads stops all of them at the next barrier, so one is
    # left over. The native kernels wait for nobody (csrc/pool.h).
    torch.set_num_threads(config.threads or max(1, usable_cores() - 1))
    begin = time.perf_counter()
    model, kernels = make_model(config, device, config.threads or usable_cores())
    seconds = time.perf_counter() - begin
    cfg = model.config
    ngram = config.speculative_algorithm == "NGRAM"
    num_drafts = config.num_drafts if model.nextn_layers or ngram else 0
    layers = cfg.num_hidden_layers + (model.nextn_layers if num_drafts and not ngram else 0)
    entry = model.cache_layout.width * model.dtype.itemsize
    pages = _pages(config, layers * entry, device)
    memory = Arena().take if kernels == "cpu" else None
    pool = KVPool(layers, pages + 1, config.page_size, model.cache_layout, model.dtype, device, memory)
    draft_layers = layers - cfg.num_hidden_layers
    radix = RadixCache(config.page_size, ahead=max(1, draft_layers))
    cache = NaiveCache() if config.disable_radix_cache else radix
    kv = KVManager(pages + 1, config.page_size, cache)
    shape = config.draft_shape
    simulated = config.speculative_simulate_accept_length
    if simulated is not None:
        logging.getLogger("nextn.engine").warning(
            "--speculative-simulate-accept-length %g: drafts are accepted by lot; texts are NOT the model's",
            simulated,
        )
    drafter: Drafter = NoDrafter()
    if num_drafts:
        drafter = NGramDrafter() if ngram else _mtp_drafter(model, pool, shape)
        if config.ngrams and not ngram:
            drafter = MixedDrafter(drafter)
    isa = choose_level(config.cpu_isa)[0] if kernels == "cpu" else None
    draw_tokens = partial(native_draw, library(isa)) if isa else draw
    executor = Runner(model, pool, drafter, draw_tokens, simulated)
    context = min(config.context_length or cfg.max_position_embeddings, cfg.max_position_embeddings)
    auto, remember = None, _nothing
    gates = isinstance(drafter, MTPDrafter) and drafter.gates
    if num_drafts and config.auto_depth:
        kept = StepCostFile(config, f"{kernels} {isa or ''}", device)
        auto, remember = _controller(
            kept, executor, Worth(num_drafts, shape, gates, ends=device.type != "cuda"),
            most_requests=config.max_running_requests, token_budget=config.chunked_prefill_size,
            context=context, beyond=shape.beyond,
        )  # fmt: skip
    scheduler = Scheduler(
        kv,
        token_budget=config.chunked_prefill_size,
        max_running=config.max_running_requests,
        num_drafts=num_drafts,
        eos_ids=frozenset(cfg.eos_token_ids),
        shape=shape,
        auto=auto,
        score_cost=0.0 if isinstance(model, FakeModel) else score_cost(cfg),
        context_cost=0.0 if isinstance(model, FakeModel) else context_cost(cfg),
    )
    slots = pages * config.page_size
    trees = num_drafts > 0 and shape.topk > 1
    other_drafter = num_drafts and config.speculative_draft_model_path is not None
    startup: dict[str, object] = {
        "model": config.model_path,
        "architecture": cfg.architecture,
        "device": device.type,
        "dtype": str(model.dtype).removeprefix("torch."),
        "kernels": kernels,
        **({"cpu_isa": isa} if isa else {}),
        "threads": config.threads or usable_cores() if kernels == "cpu" else torch.get_num_threads(),
        "weight_bytes": model.weight_bytes,
        "load_seconds": round(seconds, 3),
        "kv_tokens": slots,
        "kv_bytes_target": slots * cfg.num_hidden_layers * entry,
        "kv_bytes_draft": slots * draft_layers * entry,
        "drafter": NGRAM_DRAFTERS.get(config.speculative_algorithm, "MTP") if num_drafts else "none",
        **({"draft_layers": draft_layers} if draft_layers > 1 else {}),
        "drafts": "auto" if auto else num_drafts,
        **({"draft_topk": shape.topk, "draft_tokens": shape.size(num_drafts) + 1} if trees else {}),
        **({"simulated_accept_length": simulated} if simulated is not None else {}),
        **({"draft_model": config.speculative_draft_model_path} if other_drafter else {}),
        "verify": config.speculative_verify + ", lossy" * config.speculative.lossy,
        "prefix_cache": "off" if config.disable_radix_cache else "radix",
    }
    # A tree takes slots past a request's end.
    context = min(context, slots - (shape.beyond if num_drafts else 0))
    if context < 1:
        raise ValueError(
            f"the KV pool holds {slots} tokens, too few for trees, which take {shape.beyond} of them; "
            "raise --kv-cache-tokens or lower --speculative-eagle-topk or --speculative-num-draft-tokens"
        )
    return Built(
        model,
        executor,
        scheduler,
        frozenset(cfg.eos_token_ids),
        context,
        num_drafts,
        auto is not None,
        remember,
        startup,
    )


def _controller(
    kept: StepCostFile, executor: Runner, worth: Worth, **limits: int
) -> tuple[DepthController, Callable[[], None]]:
    """By the costs that were kept, or that are measured now; and what keeps what it will have learnt."""
    found = kept.read()
    cost, factors = found or (None, {})
    calm = cost is not None
    if cost is None:
        cost, calm = time_steps(executor, **limits)
        if calm:
            kept.write(cost, factors)
    controller = DepthController(cost, worth, factors)
    return controller, partial(kept.write, cost, controller.factors) if calm else _nothing


def _nothing() -> None:
    pass


def _mtp_drafter(model: Model, pool: KVPool, shape: Shape) -> Drafter:
    if model.nextn_layers > 1:
        return LayeredDrafter(model, pool, shape)
    return MTPDrafter(model, pool, shape, model if isinstance(model, Chains) else None)


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: torch finds no CUDA device here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


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
