"""Makes a runner from a configuration: device, weights, KV pool, drafter, and the facts about them."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection

import torch

from nextn.config import EngineConfig, usable_cores
from nextn.distributed.expert_world import ExpertWorld
from nextn.distributed.group import PeerGone
from nextn.distributed.ranks import Ranks
from nextn.distributed.torch_experts import TorchExpertWorld
from nextn.distributed.wire import GONE, send
from nextn.engine.balance import Balancer
from nextn.engine.device import engine_device
from nextn.engine.device_runner import DeviceRunner
from nextn.engine.ep_rank import EPRank
from nextn.engine.executor import ExecutorInfo
from nextn.engine.exit_codes import load_error
from nextn.engine.halves import Halves
from nextn.engine.memory import CPU_KV_TOKENS
from nextn.engine.model import make_model
from nextn.engine.on_device import plan_on_device, start_on_device
from nextn.engine.runner import Runner
from nextn.engine.shared_pass import SharedPass
from nextn.kvcache.pool import KVPool
from nextn.machine import cpu_model
from nextn.models.base import Chooser, Model
from nextn.models.cuda import CudaModel
from nextn.models.fake import FakeModel
from nextn.models.native import NativeModel
from nextn.models.row_cost import context_cost, score_cost
from nextn.models.torch_model import TorchModel
from nextn.ops.base import Draw
from nextn.ops.cpu.draw import draw as native_draw
from nextn.ops.cpu.library import choose_level, library
from nextn.ops.cpu.weights import Arena
from nextn.sampling.sampler import draw
from nextn.speculation import Speculation
from nextn.speculative.base import Drafter, NoDrafter
from nextn.speculative.layered import LayeredDrafter
from nextn.speculative.mixed_drafter import MixedDrafter
from nextn.speculative.mtp import MTPDrafter
from nextn.speculative.ngram_drafter import NGramDrafter
from nextn.waits import NO_WAITS, Waits


def make_runner(config: EngineConfig, ranks: Ranks | None = None, ep_rank: EPRank | None = None) -> Runner:
    """ranks: this rank's connection to the others that compute every step with it. ep_rank: if experts are
    shared on one machine.

    Raises ValueError for options that are incompatible or that the model does not support."""
    device = engine_device(config.device)
    if ranks is not None:
        ranks.join_gpus()
    # If the system takes a core from one of torch's threads, all threads wait at the next barrier. So one
    # core is left free. The native kernels do not wait for a suspended thread (csrc/pool.h).
    torch.set_num_threads(config.threads or max(1, usable_cores() - 1))
    begin = time.perf_counter()
    model, kernels = make_model(config, device, config.threads or usable_cores(), ranks, ep_rank)
    seconds = time.perf_counter() - begin
    if ranks is not None and isinstance(model, CudaModel):
        ranks.leaving.append(model.drop_graphs)
    speculation = config.speculation.on(model.nextn_layers)
    nextn_layers = model.nextn_layers if speculation.mtp else 0
    layers = model.config.num_hidden_layers + nextn_layers
    whole_steps, graphs = plan_on_device(config, model, speculation, layers)
    pool = _pool(config, model, layers, kernels, graphs, ranks)
    if speculation.simulated is not None:
        logging.getLogger("nextn.engine").warning(
            "--speculative-simulate-accept-length %g: drafts are accepted by lot; texts are NOT the model's",
            speculation.simulated,
        )
    isa = choose_level(config.cpu_isa)[0] if kernels == "cpu" else None
    choose: Draw = partial(native_draw, library(isa)) if isa else draw
    drafter = _drafter(speculation, model, pool, choose)
    info = _info(config, model, pool, nextn_layers, drafter, kernels, isa, seconds)
    chooser = model if ranks is not None and isinstance(model, Chooser) else None
    together = _together(config, model, pool)
    if together is not None and ranks is not None and ranks.gpus is not None:
        ranks.least(0)  # others may still load, for longer than a collective would wait
    kind = Runner if whole_steps is None else DeviceRunner
    waits = _waits(ranks, together)
    runner = kind(info, model, pool, drafter, choose, speculation.simulated, chooser, together, waits)
    if whole_steps is not None:
        assert isinstance(runner, DeviceRunner)
        start_on_device(whole_steps, runner)
    return runner


def _waits(ranks: Ranks | None, together: SharedPass | None) -> Callable[[], Waits] | None:
    """See `Runner`."""
    if ranks is None:
        return None if together is None else lambda: together.world.waits

    def of_both() -> Waits:
        found = NO_WAITS if together is None else together.world.waits
        return found._replace(group=ranks.waited)

    return of_both


def runner_or_none(
    config: EngineConfig, rank: int, link: Connection, ranks: Ranks | None, ep_rank: EPRank | None
) -> Runner | None:
    """`make_runner` in a process of its own. rank: of all groups. None if the runner cannot be made: then the
    engine at the other end of the link gets the error. Raises PeerGone."""
    try:
        return make_runner(config, ranks, ep_rank)
    except PeerGone:
        raise
    except Exception as e:
        error = load_error(config, rank, e)
        with contextlib.suppress(*GONE):  # the engine may have found or heard the same and ended
            send(link, error)
        return None


def _together(config: EngineConfig, model: Model, pool: KVPool) -> SharedPass | None:
    if not isinstance(model, (NativeModel, TorchModel)) or model.world is None:
        if config.enable_two_batch_overlap:
            raise ValueError(
                "--enable-two-batch-overlap: no experts are shared, so nothing is under way; add --ep-size "
                "or --enable-dp-attention, or leave it out"
            )
        return None
    world = model.world
    assert isinstance(world, (ExpertWorld, TorchExpertWorld))
    first = world.share.rank % (world.share.size // world.groups) == 0
    halves = Halves(decides=first) if config.enable_two_batch_overlap else None
    balancer = Balancer(config, world, model) if config.enable_eplb else None
    return SharedPass(model, pool, world, halves, balancer)


def _info(
    config: EngineConfig,
    model: Model,
    pool: KVPool,
    nextn_layers: int,
    drafter: Drafter,
    kernels: str,
    isa: str | None,
    load_seconds: float,
) -> ExecutorInfo:
    cfg, cuda = model.config, model.device.type == "cuda"
    pages = pool.data.shape[1] // pool.page_size - 1
    layer_bytes = pages * pool.page_size * _entry_bytes(model)
    return ExecutorInfo(
        architecture=cfg.architecture,
        vocab_size=cfg.vocab_size,
        eos_ids=frozenset(cfg.eos_token_ids),
        max_positions=cfg.max_position_embeddings,
        nextn_layers=nextn_layers,
        experts=(cfg.n_routed_experts, cfg.num_experts_per_tok) if cfg.n_routed_experts else (1, 1),
        page_size=pool.page_size,
        pages=pages,
        cuts=isinstance(drafter, MTPDrafter) and drafter.cuts,
        computes=not isinstance(model, FakeModel),
        score_cost=score_cost(cfg),
        context_cost=context_cost(cfg),
        device=model.device.type,
        chip=torch.cuda.get_device_name(model.device) if cuda else cpu_model(),
        dtype=str(model.dtype).removeprefix("torch."),
        kernels=kernels,
        isa=isa,
        arithmetic=model.weights.ways if isinstance(model, NativeModel) else {},
        threads=config.threads or usable_cores() if kernels == "cpu" else torch.get_num_threads(),
        load_seconds=load_seconds,
        weight_bytes=model.weight_bytes,
        kv_bytes_target=layer_bytes * cfg.num_hidden_layers,
        kv_bytes_draft=layer_bytes * nextn_layers,
        cache_layers=pool.data.shape[0],
        cache_width=pool.data.shape[2],
    )


def _pool(
    config: EngineConfig, model: Model, layers: int, kernels: str, graphs: int, ranks: Ranks | None
) -> KVPool:
    """graphs: bytes of device memory that CUDA graphs will take."""
    pages = _pages(config, layers * _entry_bytes(model), model.device, graphs, ranks)
    memory = Arena().take if kernels == "cpu" else None
    return KVPool(layers, pages + 1, config.page_size, model.cache_layout, model.dtype, model.device, memory)


def _entry_bytes(model: Model) -> int:
    """Bytes of a token in one layer of the pool."""
    return model.cache_layout.width * model.dtype.itemsize


def _pages(
    config: EngineConfig,
    bytes_per_token: int,
    device: torch.device,
    graphs: int = 0,
    ranks: Ranks | None = None,
) -> int:
    tokens = config.kv_cache_tokens
    if tokens is None and device.type == "cuda":
        free = _free(device, ranks)
        tokens = int((free - graphs) * config.mem_fraction_static) // bytes_per_token
    elif tokens is None:
        tokens = CPU_KV_TOKENS
    pages = tokens // config.page_size
    if pages < 1:
        raise ValueError(
            f"the KV pool would hold {tokens} tokens, less than one page of {config.page_size}; "
            "raise --kv-cache-tokens or --mem-fraction-static"
        )
    return pages


def _free(device: torch.device, ranks: Ranks | None) -> int:
    """Free bytes of the GPU after every rank has loaded: the minimum of all, because their pools are
    equal."""
    if ranks is None:
        return int(torch.cuda.mem_get_info(device)[0])
    assert ranks.gpus is not None
    ranks.least(0)
    return ranks.least(int(torch.cuda.mem_get_info(device)[0]) // ranks.gpus.sharing)


def _drafter(speculation: Speculation, model: Model, pool: KVPool, choose: Draw) -> Drafter:
    if not speculation.num_steps:
        return NoDrafter()
    if not speculation.mtp:
        return NGramDrafter()
    kind = LayeredDrafter if model.nextn_layers > 1 else MTPDrafter
    drafter = kind(model, pool, speculation.shape, choose)
    return MixedDrafter(drafter) if speculation.ngrams else drafter
