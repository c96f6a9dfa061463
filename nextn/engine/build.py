"""Makes the parts of an engine from a configuration: executor, scheduler, and automatic depth."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from nextn.config import EngineConfig
from nextn.distributed.memory import Memory
from nextn.distributed.place import Place
from nextn.engine.ep_rank import EPRank
from nextn.engine.executor import Executor, ExecutorInfo
from nextn.engine.gang import pin_rank
from nextn.engine.group_executor import GroupExecutor
from nextn.engine.kernels import runs_on_torch
from nextn.engine.lockstep import LockstepExecutor, OthersHere
from nextn.engine.rank import make_runner
from nextn.engine.runner import Runner
from nextn.engine.startup import startup
from nextn.engine.step_cost_file import StepCostFile
from nextn.engine.step_timing import time_steps
from nextn.engine.tensor_parallel import TensorParallelExecutor
from nextn.engine.thread import ThreadExecutor
from nextn.engine.world import shares_experts
from nextn.kvcache.manager import KVManager
from nextn.kvcache.naive import NaiveCache
from nextn.kvcache.radix import RadixCache
from nextn.ops.cpu.library import build_of
from nextn.scheduler.plan import Plan
from nextn.scheduler.prompt_budget import PromptBudget
from nextn.scheduler.scheduler import Scheduler
from nextn.speculation import Speculation
from nextn.speculative.depth.controller import DepthController
from nextn.speculative.depth.cost import Factors, StepCost
from nextn.speculative.depth.value import DraftValue


@dataclass(frozen=True)
class Built:
    executor: Executor
    scheduler: Scheduler
    speculation: Speculation
    context_length: int
    remember: Callable[[], None]  # saves what automatic depth has learnt, for the next start
    startup: dict[str, object]


def make_executor(config: EngineConfig, place: Place | None = None) -> Executor:
    """place: this engine's, if several engines share their experts. Raises ValueError for options that are
    incompatible or that the model does not support."""
    executor = _make_placed(config, place)
    return ThreadExecutor(executor) if config.overlaps(executor.info.device) else executor


def _make_placed(config: EngineConfig, place: Place | None) -> Executor:
    if place is not None and config.nnodes > 1:
        group = GroupExecutor(config, place.group)
        return LockstepExecutor(group, place, group)
    if place is not None:
        ep_rank = EPRank(place.group, 0, place.memory, by_torch=runs_on_torch(config))
        if config.tp_size == 1 and not ep_rank.by_torch:  # otherwise its gang pins it
            pin_rank(config, place.group)
        own = _make_executor(config, ep_rank)
        assert own.world is not None
        return LockstepExecutor(own, place, OthersHere(own.world, place))
    if config.nnodes > 1 or not shares_experts(config):
        return _make_executor(config, None)
    memory = Memory()
    try:
        made = _make_executor(config, EPRank(0, 0, memory, by_torch=runs_on_torch(config)))
    except BaseException:
        memory.close()
        raise
    weakref.finalize(made, memory.close)
    return made


def _make_executor(config: EngineConfig, ep_rank: EPRank | None) -> Runner | TensorParallelExecutor:
    """A single rank that is connected to others by torch.distributed also needs TensorParallelExecutor, which
    disconnects it at the end.
    """
    if config.tp_size == 1 and not (ep_rank is not None and ep_rank.by_torch):
        return make_runner(config, None, ep_rank)
    return TensorParallelExecutor(config, ep_rank)


def build(config: EngineConfig, make_executor: Callable[[EngineConfig], Executor] = make_executor) -> Built:
    """Raises the errors of `make_executor`."""
    executor = make_executor(config)
    try:
        return _built(config, executor)
    except Exception as e:
        executor.refuse(str(e))
        raise


def _built(config: EngineConfig, executor: Executor) -> Built:
    info = executor.info
    speculation = config.speculation.on(info.nextn_layers)
    context = min(config.context_length or info.max_positions, info.max_positions)
    auto, cost, remember = None, None, _nothing
    if speculation.auto or info.computes:
        kernels = f"{info.kernels} {info.isa} {build_of(info.isa)}" if info.isa else info.kernels
        kept = StepCostFile(config, info.chip, kernels)
        cost, factors, keep = _step_cost(
            kept, executor, drafts=speculation.auto, max_requests=config.max_running_requests,
            token_budget=config.chunked_prefill_size, context=context, beyond=speculation.beyond,
        )  # fmt: skip
        if speculation.auto:
            auto = _controller(info, speculation, cost, factors)
            remember = partial(kept.write, cost, auto.factors) if keep else _nothing
    scheduler = Scheduler(
        _kv(config, info),
        executor,
        prompts=_prompts(config, info, cost),
        max_running=config.max_running_requests,
        num_steps=speculation.num_steps,
        eos_ids=info.eos_ids,
        shape=speculation.shape,
        auto=auto,
    )
    fits = _fitting(context, info, speculation)
    return Built(executor, scheduler, speculation, fits, remember, startup(config, info, speculation))


def _kv(config: EngineConfig, info: ExecutorInfo) -> KVManager:
    radix = RadixCache(info.page_size, ahead=max(1, info.nextn_layers))
    return KVManager(info.pages + 1, info.page_size, NaiveCache() if config.disable_radix_cache else radix)


def _prompts(config: EngineConfig, info: ExecutorInfo, cost: StepCost | None) -> PromptBudget:
    if not info.computes:
        return PromptBudget(config.chunked_prefill_size)
    return PromptBudget(config.chunked_prefill_size, info.score_cost, info.context_cost, cost)


def _fitting(context: int, info: ExecutorInfo, speculation: Speculation) -> int:
    """The maximum length of a request. A tree uses slots after a request's end."""
    slots, beyond = info.pages * info.page_size, speculation.beyond
    if slots <= beyond:
        raise ValueError(
            f"the KV pool holds {slots} tokens, too few for trees, which take {beyond} of them; "
            "raise --kv-cache-tokens or lower --speculative-eagle-topk or --speculative-num-draft-tokens"
        )
    return min(context, slots - beyond)


def _step_cost(
    kept: StepCostFile, executor: Executor, *, drafts: bool, **limits: int
) -> tuple[StepCost, Factors, bool]:
    """The step costs of an earlier start, or new measurements; and whether these should be saved."""
    found = kept.read()
    if found is not None:
        return *found, True
    if executor.wakes is not None:  # others may still load; waiting for them is not part of a step
        executor.launch(Plan([])).result()
    cost, calm = time_steps(executor, drafts=drafts, **limits)
    if calm:
        kept.write(cost, {})
    return cost, {}, calm


def _controller(
    info: ExecutorInfo, speculation: Speculation, cost: StepCost, factors: Factors
) -> DepthController:
    value = DraftValue(speculation.num_steps, speculation.shape, info.cuts, ends=info.device != "cuda")
    return DepthController(cost, value, factors, info.page_size)


def _nothing() -> None:
    pass
