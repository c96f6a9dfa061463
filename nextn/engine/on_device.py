"""Decides whether an engine's steps can run as whole graphs on its device, measures the memory for this, and
starts it."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Sequence
from typing import NamedTuple

import torch

from nextn.config import EngineConfig
from nextn.draft import MAX_DRAFTS, NO_DRAFT, Draft
from nextn.engine.device_runner import DeviceRunner, make_shape, rounded
from nextn.engine.executor import Executor
from nextn.engine.made_up import add_made_up, made_up_span
from nextn.kvcache.pool import KVPool
from nextn.models.base import Model
from nextn.models.cuda import CudaModel
from nextn.models.graphs import BUCKETS, bucket
from nextn.models.torch_model import TorchModel
from nextn.request import SamplingParams
from nextn.sampling.row_draws import Choosing
from nextn.scheduler.plan import Plan, SpanResult
from nextn.speculation import Speculation
from nextn.speculative.device.graphs import StepGraphs, graph_bytes
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.shape import Drafting, StepShape
from nextn.speculative.device.step import DeviceStep

# For the graphs that are captured at start. Others are captured when needed.
LONGEST = (512, 2048)
AUTO = 2  # draft depth, if automatic depth decides it
REPORTS = 5.0  # seconds between two progress lines

# For the check at start.
STEPS = 4
PROMPTS = (3, 17, 40)  # tokens of each request's prompt
CHOICES = (  # sampling parameters of each request
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.0, seed=11, stream=2),
    SamplingParams(temperature=0.7, seed=2**40 + 3, top_p=0.9, top_k=50),
)

WITHOUT = "graphs of whole steps are not used, steps are launched pass by pass: %s"

log = logging.getLogger("nextn.engine")


class OnDevice(NamedTuple):
    """requests: maximum number in a step. num_steps: default draft depth. cut: whether a cutoff may end
    drafts. extends: whether there is a drafter."""

    requests: int
    num_steps: int
    cut: bool
    extends: bool

    def relay(self, model: Model, page_size: int) -> Relay:
        slots = model.config.max_position_embeddings + 2 * MAX_DRAFTS
        return Relay(self.requests, -(-slots // page_size) + 1, model.device)

    def shapes(self, longest: int, row_align: int = 1) -> list[StepShape]:
        """The shapes that are captured at start, for every number of requests. The largest comes first, and
        the others reuse its memory. longest: positions of a request."""
        found = []
        steps = min(self.num_steps, AUTO) if self.cut else self.num_steps
        kinds = [Drafting(rounded(steps), self.extends, self.cut)]
        if self.cut:
            kinds.append(Drafting())  # while nobody drafts
        choices = Choosing.GREEDY, Choosing.SAMPLED
        requests = [n for n in BUCKETS if n <= self.requests]
        lengths = [keys for keys in LONGEST if keys <= max(longest, LONGEST[0])]
        for n, keys, kind, choosing in itertools.product(requests, lengths, kinds, choices):
            rows = n * (1 + steps) if kind.extends else n
            found.append(make_shape(n, rows, kind, choosing, keys, row_align))
        return sorted((s for s in found if s), key=lambda s: (s.rows, s.longest, s.choosing), reverse=True)


def on_device(config: EngineConfig, model: Model, speculation: Speculation) -> OnDevice | None:
    """None if steps cannot run as whole graphs."""
    if not isinstance(model, CudaModel) or not model.captures or speculation.simulated is not None:
        return None
    if model.group.size > 1:  # each rank would decide separately whether its steps are right
        return None
    shape = speculation.shape
    chains = speculation.mtp and model.nextn_layers == 1 and shape.topk == 1 and not speculation.ngrams
    if speculation.num_steps and not chains:
        return None
    most = bucket(min(config.max_running_requests, BUCKETS[-1]))
    assert most is not None
    return OnDevice(most, speculation.num_steps, speculation.auto, bool(speculation.num_steps))


def plan_on_device(
    config: EngineConfig, model: Model, speculation: Speculation, layers: int
) -> tuple[OnDevice | None, int]:
    """(None if steps cannot run as whole graphs, the bytes that they need besides the pool). layers: of the
    KV pool."""
    plan = on_device(config, model, speculation)
    if plan is None:
        return None, 0
    try:
        return plan, _memory_of(plan, model, layers, config.page_size)
    except Exception:
        log.exception(WITHOUT, "their memory cannot be measured")
        return None, 0


def _memory_of(plan: OnDevice, model: Model, layers: int, page_size: int) -> int:
    """Bytes for the graphs that are captured at start and their data, measured with a pool of one page."""
    pool = KVPool(layers, 1, page_size, model.cache_layout, model.dtype, model.device)
    relay = plan.relay(model, page_size)
    assert isinstance(model, TorchModel)
    step = DeviceStep(model, pool, relay, plan.requests)
    largest = plan.shapes(model.config.max_position_embeddings)[0]._replace(choosing=Choosing.FILTERED)
    with torch.inference_mode():
        taken = graph_bytes(step, largest)
    return taken + relay.rows.nbytes + relay.pages.nbytes + step.results.nbytes


def start_on_device(plan: OnDevice, runner: DeviceRunner) -> bool:
    """Captures the graphs, and compares a few steps with the general way. If they differ, or an exception is
    raised, the runner uses only the general way. Returns whether it uses graphs."""
    model, pool = runner.model, runner.pool
    assert isinstance(model, TorchModel)
    steps = min(plan.num_steps, 3)
    pages = pool.data.shape[1] // pool.page_size - 1
    fits = pages >= len(PROMPTS) * _pages_each(pool.page_size, steps)
    if not fits or model.config.max_position_embeddings < _positions(steps):
        log.info("steps are launched pass by pass: there is no room to check graphs of whole steps")
        return False
    options = model.config.vocab_size, pool.page_size, steps, plan.extends
    want = made_up_steps(runner, *options)
    try:
        step = DeviceStep(model, pool, plan.relay(model, pool.page_size), plan.requests)
        graphs = StepGraphs(step)
        _capture(graphs, plan.shapes(model.config.max_position_embeddings, model.row_align))
        runner.begin_on_device(step, graphs)
        same = made_up_steps(runner, *options) == want
    except Exception:
        log.exception(WITHOUT, "they cannot run here")
        same = False
    else:
        if not same:
            log.warning(WITHOUT, "their results differ")
    if not same:
        runner.end_on_device()
    return same


def _capture(graphs: StepGraphs, shapes: list[StepShape]) -> None:
    begin = said = time.perf_counter()
    done = 0

    def captured() -> None:
        nonlocal done, said
        done += 1
        now = time.perf_counter()
        if now - said > REPORTS:
            said = now
            log.info("CUDA graphs: %s", progress_bar(done, len(shapes)))

    graphs.capture(shapes, captured)
    log.info("CUDA graphs: captured %d in %.1f s", len(shapes), time.perf_counter() - begin)


def progress_bar(done: int, total: int, width: int = 24) -> str:
    """
    >>> progress_bar(6, 24)
    '[######..................] 6/24'
    """
    full = width * done // total
    return f"[{'#' * full}{'.' * (width - full)}] {done}/{total}"


def _positions(num_steps: int) -> int:
    """Maximum number of positions of a made-up request, including its drafts."""
    return max(PROMPTS) + (1 + STEPS) * (2 + 2 * num_steps)


def _pages_each(page_size: int, num_steps: int) -> int:
    return -(-_positions(num_steps) // page_size)


def made_up_steps(
    executor: Executor, vocabulary: int, page_size: int, num_steps: int, extend: bool
) -> list[Sequence[SpanResult]]:
    """The results of a prompt's step and of STEPS that follow it."""
    each = _pages_each(page_size, num_steps)
    histories = [[(7 * i + 5 * n + 1) % vocabulary for i in range(count)] for n, count in enumerate(PROMPTS)]
    drafts: list[Draft] = [NO_DRAFT] * len(PROMPTS)
    found: list[Sequence[SpanResult]] = []
    for n, (history, params) in enumerate(zip(histories, CHOICES, strict=True)):
        add_made_up(executor, f"check {n}", history, params, (2 + STEPS) * (1 + num_steps))
    try:
        for step in range(1 + STEPS):
            spans = []
            for n, (history, draft) in enumerate(zip(histories, drafts, strict=True)):
                start = len(history) - 1 if step else 0
                spans.append(
                    made_up_span(
                        f"check {n}", n, start, len(history) - start, draft, each=each,
                        pages=len(PROMPTS) * each, num_steps=num_steps, extend=extend,
                    )
                )  # fmt: skip
            results = executor.launch(Plan(spans)).result().spans
            found.append(results)
            for history, result in zip(histories, results, strict=True):
                history += result.tokens
            drafts = [result.draft for result in results]
    finally:
        for n in range(len(PROMPTS)):
            executor.drop(f"check {n}")
    return found
