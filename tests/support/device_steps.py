"""Runners with and without steps on the device, and a small scheduler for them. The scheduler knows of a
request only the results that it has read, plans one step ahead if asked to, and gives each request its own
pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from support.checkpoints import tiny_config
from support.sharing import shared_model

from nextn.cutoff import Cutoff
from nextn.draft import NO_DRAFT, Draft, Shape
from nextn.engine.device_runner import DeviceRunner
from nextn.engine.runner import Runner
from nextn.kvcache.pool import KVPool
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, SpanPlan, SpanResult
from nextn.speculative.base import NoDrafter
from nextn.speculative.device.graphs import OneByOne, StepPasses
from nextn.speculative.device.relay import Relay
from nextn.speculative.device.step import DeviceStep
from nextn.speculative.mtp import MTPDrafter
from nextn.speculative.state import RequestState

PAGE = 16
PAGES = 16  # for each request


def config(**changes: Any) -> dict[str, Any]:
    """A configuration with so few tokens that target and draft layer sometimes agree."""
    return tiny_config(**{"num_hidden_layers": 2, "vocab_size": 12, **changes})


@dataclass
class Job:
    """A request. num_steps: depth of its drafts. joins: number of the step in which it arrives. draft_from:
    if not 0, the prompt has two parts; the first has `draft_from` tokens, and the drafter does not see it."""

    prompt: Sequence[int]
    params: SamplingParams
    num_steps: int = 2
    end_ids: frozenset[int] = frozenset()
    joins: int = 0
    cut: bool = False
    extend: bool = True
    draft_from: int = 0
    tokens: list[int] = field(default_factory=list)
    results: list[SpanResult] = field(default_factory=list)


def make_runner(
    model: Any,
    requests: int = 8,
    drafts: bool = True,
    on_device: bool = True,
    passes: Callable[[DeviceStep], StepPasses] = OneByOne,
) -> DeviceRunner:
    layers = model.config.num_hidden_layers + model.nextn_layers
    pool = KVPool(layers, 1 + 8 * PAGES, PAGE, model.cache_layout, model.dtype, model.device)
    drafter = MTPDrafter(model, pool, Shape()) if drafts else NoDrafter()
    info: Any = None
    runner = DeviceRunner(info, model, pool, drafter)
    if on_device:
        relay = Relay(requests, PAGES, model.device)
        step = DeviceStep(model, pool, relay, requests)
        runner.begin_on_device(step, passes(step))
    return runner


def small_model(vocab_size: int = 12, **options: Any) -> Any:
    return shared_model(config(vocab_size=vocab_size), **options)


def same_results(found: Sequence[SpanResult], want: Sequence[SpanResult]) -> bool:
    """Whether results are the same. On the device all guesses of a chain are made and their bins reported, so
    `found` may have more bins; the kept guesses are the same."""
    return len(found) == len(want) and all(
        a.draft.bins.startswith(b.draft.bins) and replace(a, draft=replace(a.draft, bins=b.draft.bins)) == b
        for a, b in zip(found, want, strict=True)
    )


@dataclass
class _Under:
    """The scheduler's data of a running request."""

    job: Job
    rid: str
    state: RequestState
    pages: list[int]
    limit: int
    known: list[int]
    draft: Draft = NO_DRAFT
    unread: int = 0
    sent: int = 0
    last_steps: int = 0
    over: bool = False
    begun: int = 0  # number of prompt tokens in steps so far


def serve(
    runner: Runner,
    jobs: Sequence[Job],
    ahead: bool = False,
    cutoff: Cutoff | None = None,
    keep: bool = False,
) -> list[list[int]]:
    """The texts of the jobs. ahead: once all prompts are processed, a step is launched before the one before
    it is read."""
    free = [list(range(1 + i * PAGES, 1 + (i + 1) * PAGES)) for i in range(8)]
    running: list[_Under] = []
    waiting = list(enumerate(jobs))
    pending: list[tuple[Plan, list[_Under], Any]] = []
    step = 0
    while waiting or running:
        while waiting and waiting[0][1].joins <= step and not pending:
            n, job = waiting.pop(0)
            limit = len(job.prompt) + job.params.max_tokens
            state = RequestState(str(n), job.params, list(job.prompt), len(job.prompt), limit, job.end_ids)
            runner.add(state)
            running.append(_Under(job, str(n), state, free.pop(), limit, list(job.prompt)))
        step += 1
        spans, parts = [], []
        for r in running:
            span = _span(r, ahead=bool(r.unread))
            if span is not None:
                spans.append(span)
                parts.append(r)
        if spans:
            plan = Plan(spans, cutoff if any(s.cut for s in spans) else None, keep)
            pending.append((plan, parts, runner.launch(plan)))
        joins = bool(waiting) and waiting[0][1].joins <= step
        under_way = 1 if ahead and spans and not joins and all(s.chooses for s in spans) else 0
        while len(pending) > under_way:
            plan, parts, ticket = pending.pop(0)
            for r, span, result in zip(parts, plan.spans, ticket.result().spans, strict=True):
                _commit(r, span, result)
        for r in [r for r in running if r.over]:
            running.remove(r)
            free.append(r.pages)
            runner.drop(r.rid)
    return [job.tokens for job in jobs]


def _span(r: _Under, ahead: bool) -> SpanPlan | None:
    have = len(r.known)
    cut = r.job.cut and r.job.num_steps > 0
    first, r.sent = r.sent, len(r.pages)
    options: Mapping[str, Any] = {
        "rid": r.rid, "first_page": first, "pages": r.pages[first:], "num_steps": r.job.num_steps, "cut": cut,
        "extend": r.job.extend, "draft_from": r.job.draft_from,
    }  # fmt: skip
    if ahead:
        if have + 1 >= r.limit:
            return None
        most, r.unread = r.last_steps, r.unread + 1
        r.last_steps = r.job.num_steps
        start = have - 1 + 1 + len(r.draft)
        return SpanPlan(
            start=start, known=1, draft=NO_DRAFT, chooses=True, ahead=True, most_drafts=most, **options
        )
    r.unread, r.last_steps = 1, r.job.num_steps
    if have == len(r.job.prompt):
        start = r.begun
        if start < r.job.draft_from:
            r.begun = r.job.draft_from
            options = {**options, "extend": False, "num_steps": 0, "cut": False, "draft_from": 0}
            return SpanPlan(start=0, known=r.begun, draft=NO_DRAFT, chooses=False, **options)
        return SpanPlan(start=start, known=have - start, draft=NO_DRAFT, chooses=True, **options)
    draft = r.draft.cut(16, r.limit - have - 1)
    r.draft = draft
    return SpanPlan(start=have - 1, known=1, draft=draft, chooses=True, **options)


def _commit(r: _Under, span: SpanPlan, result: SpanResult) -> None:
    r.unread -= 1
    r.job.results.append(result)
    if r.over:
        assert not result.tokens or not span.ahead
        return
    r.draft = result.draft
    if result.error is not None:
        r.over = True
    for token in result.tokens:
        r.known.append(token)
        r.job.tokens.append(token)
        early = len(r.known) - len(r.job.prompt) <= r.job.params.min_tokens
        if (token in r.job.end_ids and not early) or len(r.known) >= r.limit:
            r.over = True
            return
