"""What steps cost on this machine: whole steps of made-up requests, timed at start-up on the executor that
will serve, for growing numbers of requests. The pages that they write are written over before they are read.
"""

from __future__ import annotations

import random
import time
from statistics import median

from nextn.draft import NO_DRAFT, Draft
from nextn.engine.executor import Executor, ExecutorInfo
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, SpanPlan
from nextn.speculative.depth.cost import StepCost, fit
from nextn.speculative.state import RequestState
from nextn.speculative.work import StepWork

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
SETTINGS = ((0, 0), (0, 1), (0, 4), (2, 1), (4, 2))  # (drafts verified, made)
SECONDS = 0.5  # after which no larger batch is begun; an eighth of them for each, but two rounds at least
STEPS = 3  # of one setting in a row, after one that does not count
POSITIONS = (32, 1024)  # that requests read; the difference shows what context costs
CALM = 1.2  # times its least, the usual time of a step on a machine that does nothing else


def time_steps(
    executor: Executor, *, drafts: bool, max_requests: int, token_budget: int, context: int, beyond: int
) -> tuple[StepCost, bool]:
    """drafts: is what they cost wanted, too? Without it, less is measured. context: tokens of a request, at
    most. beyond: slots that its trees take past them. Returns the cost, and whether the machine was calm."""
    (near, far), slots = POSITIONS, executor.info.pages * executor.info.page_size
    found: dict[StepWork, list[float]] = {}
    for n in REQUESTS if drafts else REQUESTS[::3]:
        late = sum(map(sum, found.values())) > SECONDS  # without what a GPU's kernels and graphs take to make
        if found and (late or n > max_requests or 5 * n > token_budget or n * (near + 32 + beyond) > slots):
            break
        settings = SETTINGS if drafts and n in REQUESTS[::2] else SETTINGS[:1]
        _time(executor, n, min(near, context // 2), beyond, settings, found, SECONDS / 8 * drafts)
        if n == 4 and min(context, slots // n) > far + 32 + beyond:
            _time(executor, n, far, beyond, SETTINGS[:1], found, SECONDS / 8)
    cost = fit([(work, min(took)) for work, took in found.items()], executor.info.experts)
    return cost, median(median(took) / min(took) for took in found.values()) < CALM


def _time(
    executor: Executor, n: int, position: int, beyond: int, settings: tuple[tuple[int, int], ...],
    found: dict[StepWork, list[float]], seconds: float,
) -> None:  # fmt: skip
    drafts = [[1] * 4] * n
    begin, rounds = time.perf_counter(), 0
    while (rounds := rounds + 1) <= 2 or time.perf_counter() - begin < seconds:
        for verified, made in settings:
            plan = _plan(executor.info, position, beyond, [d[:verified] for d in drafts], made)
            for step in range(1 + STEPS):
                for i in range(n):
                    executor.add(_state(i, position, executor.info.vocab_size))
                start = time.perf_counter()
                result = executor.launch(plan).result()
                if step and result.work is not None:
                    found.setdefault(result.work, []).append(time.perf_counter() - start)
                for i in range(n):
                    executor.drop(str(i))
            if made == 4:
                drafts = [[*s.draft.tokens, 1, 1, 1, 1] for s in result.spans]


def _state(i: int, position: int, vocabulary: int) -> RequestState:
    """Of a request whose last token, the root, is at that position."""
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    tokens = [random.Random(i).randrange(vocabulary)] * (position + 1)
    return RequestState(str(i), params, tokens, position, position + 65, frozenset())


def _plan(info: ExecutorInfo, position: int, beyond: int, drafts: list[list[int]], made: int) -> Plan:
    each = -(-(position + 16 + beyond) // info.page_size)
    spans = [
        SpanPlan(
            rid=str(i), start=position, known=1, draft=Draft(draft) if draft else NO_DRAFT, chooses=True,
            first_page=0, pages=[1 + (i * each + k) % info.pages for k in range(each)], num_steps=made,
            extend=made > 0,
        ) for i, draft in enumerate(drafts)
    ]  # fmt: skip
    return Plan(spans)
