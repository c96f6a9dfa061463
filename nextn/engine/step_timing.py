"""Measures the cost of steps at start-up: times made-up requests, in growing numbers, on the executor that
will serve. The pages that they write are overwritten before they are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from nextn.engine.executor import Executor
from nextn.engine.made_up import add_alike, plan_alike
from nextn.speculative.depth.cost import StepCost, fit
from nextn.speculative.work import StepWork

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
SETTINGS = ((0, 0), (0, 1), (0, 4), (2, 1), (4, 2))  # (drafts verified, made)
SECONDS = 0.5  # then no larger batch begins; an eighth of it for each batch, but at least two rounds
STEPS = 3  # consecutive steps of one setting, after one that is not counted
POSITIONS = (32, 1024)  # contexts, to find the cost of a position; the first is also the length of a prompt
CALM = 1.2  # on an idle machine, the median time of a step is less than this many times its minimum


def time_steps(
    executor: Executor, *, drafts: bool, max_requests: int, token_budget: int, context: int, beyond: int
) -> tuple[StepCost, bool]:
    """drafts: whether to measure drafts too. context: maximum tokens of a request. beyond: slots after them
    that its trees use. Returns the cost, and whether the machine was idle otherwise."""
    (near, far), slots = POSITIONS, executor.info.pages * executor.info.page_size
    found: dict[StepWork, list[float]] = {}
    for n in REQUESTS if drafts else REQUESTS[::3]:
        late = sum(map(sum, found.values())) > SECONDS  # excludes making a GPU's kernels and graphs
        if found and (late or n > max_requests or 5 * n > token_budget or n * (near + 32 + beyond) > slots):
            break
        settings = SETTINGS if drafts and n in REQUESTS[::2] else SETTINGS[:1]
        _time(executor, n, min(near, context // 2), beyond, settings, found, SECONDS / 8 * drafts)
        if n == 4 and min(context, slots // n) > far + 32 + beyond:
            _time(executor, n, far, beyond, settings[:1] + settings[3:4], found, SECONDS / 8)
    cost = fit([(work, min(took)) for work, took in found.items()], executor.info.experts)
    if drafts and min(context // 2, token_budget) >= near:
        prompts: dict[StepWork, list[float]] = {}
        _time(executor, 1, near, beyond, SETTINGS[:2], prompts, SECONDS / 8, near)
        took = [min(prompts[work]) for work in sorted(prompts)]  # without and with drafts
        cost = replace(cost, prompt_row=max(0.0, took[-1] - took[0] - cost.drafting(1, 1)) / near)
    return cost, median(median(took) / min(took) for took in found.values()) < CALM


def _time(executor: Executor, n: int, position: int, beyond: int, settings: Sequence[tuple[int, int]],
          found: dict[StepWork, list[float]], seconds: float, known: int = 1) -> None:  # fmt: skip
    drafts, begin, rounds = [[1] * 4] * n, time.perf_counter(), 0
    while (rounds := rounds + 1) <= 2 or time.perf_counter() - begin < seconds:
        for verified, made in settings:
            chains = [draft[:verified] for draft in drafts]
            plan = plan_alike(executor.info, chains, position, known, made, beyond)
            for step in range(1 + STEPS):
                add_alike(executor, n, position)
                then = time.perf_counter()
                result = executor.launch(plan).result()
                if step and result.work is not None:
                    found.setdefault(result.work, []).append(time.perf_counter() - then - result.waits.others)
                for i in range(n):
                    executor.drop(str(i))
            if made == 4:
                drafts = [[*s.draft.tokens, 1, 1, 1, 1] for s in result.spans]
