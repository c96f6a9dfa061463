"""From a configuration to the parts of an engine: what runs steps, what plans them, how deep they draft."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nextn.config import EngineConfig
from nextn.engine.executor import Executor, ExecutorInfo
from nextn.engine.rank import make_runner
from nextn.engine.startup import startup
from nextn.engine.step_cost_file import StepCostFile
from nextn.engine.step_timing import time_steps
from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.radix import RadixCache
from nextn.scheduler.scheduler import Scheduler
from nextn.speculation import Speculation
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.worth import Worth


@dataclass(frozen=True)
class Built:
    executor: Executor
    scheduler: Scheduler
    speculation: Speculation
    context_length: int
    remember: Callable[[], None]  # keeps for the next start what automatic depth has learnt
    startup: dict[str, object]


def build(config: EngineConfig, make_executor: Callable[[EngineConfig], Executor] = make_runner) -> Built:
    """Raises ValueError for options that do not go together or that the model cannot honour."""
    executor = make_executor(config)
    info = executor.info
    speculation = config.speculation.on(info.nextn_layers)
    context = min(config.context_length or info.max_positions, info.max_positions)
    auto, remember = None, _nothing
    if speculation.auto:
        auto, remember = _controller(config, executor, speculation, context)
    scheduler = Scheduler(
        _kv(config, info),
        executor,
        token_budget=config.chunked_prefill_size,
        max_running=config.max_running_requests,
        num_steps=speculation.num_steps,
        eos_ids=info.eos_ids,
        shape=speculation.shape,
        auto=auto,
        score_cost=info.score_cost,
        context_cost=info.context_cost,
    )
    fits = _fitting(context, info, speculation)
    return Built(executor, scheduler, speculation, fits, remember, startup(config, info, speculation))


def _kv(config: EngineConfig, info: ExecutorInfo) -> KVManager:
    cache = (
        NaiveCache()
        if config.disable_radix_cache
        else RadixCache(info.page_size, ahead=max(1, info.nextn_layers))
    )
    return KVManager(info.pages + 1, info.page_size, cache)


def _fitting(context: int, info: ExecutorInfo, speculation: Speculation) -> int:
    """The longest a request may get. A tree takes slots past a request's end."""
    slots, beyond = info.pages * info.page_size, speculation.beyond
    if slots <= beyond:
        raise ValueError(
            f"the KV pool holds {slots} tokens, too few for trees, which take {beyond} of them; "
            "raise --kv-cache-tokens or lower --speculative-eagle-topk or --speculative-num-draft-tokens"
        )
    return min(context, slots - beyond)


def _controller(
    config: EngineConfig, executor: Executor, speculation: Speculation, context: int
) -> tuple[DepthController, Callable[[], None]]:
    """By the costs that were kept, or that are measured now; and what keeps what it will have learnt."""
    info = executor.info
    kept = StepCostFile(config, info.chip, f"{info.kernels} {info.isa or ''}")
    found = kept.read()
    cost, factors = found or (None, {})
    calm = cost is not None
    if cost is None:
        cost, calm = time_steps(
            executor,
            most_requests=config.max_running_requests,
            token_budget=config.chunked_prefill_size,
            context=context,
            beyond=speculation.beyond,
        )
        if calm:
            kept.write(cost, factors)
    worth = Worth(speculation.num_steps, speculation.shape, info.gates, ends=info.device != "cuda")
    controller = DepthController(cost, worth, factors)
    return controller, partial(kept.write, cost, controller.factors) if calm else _nothing


def _nothing() -> None:
    pass
