"""What steps cost on this machine: whole steps of made-up requests, timed at start-up on the executor that
will serve.

For growing numbers of requests: a step without drafts, steps that draft once and four times, and steps that
verify two and four drafts, in rounds. Other work on the machine only adds to a time, so the least of each goes to `nextn.speculative.depth.cost.fit`. The pages that are
written to are garbage that is written over before anybody reads it.
"""

from __future__ import annotations

import random
import time

from nextn.draft import NO_DRAFT, Draft
from nextn.engine.runner import Runner
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, Row
from nextn.speculative.depth.cost import StepCost, StepWork, fit

REQUESTS = (1, 2, 4, 8, 16, 32, 64, 128)
SECONDS = 0.5  # after which no larger number of requests is begun
SETTINGS = ((0, 0), (0, 1), (0, 4), (2, 1), (4, 2))  # (drafts verified, made)
STEPS, ROUNDS, PER_SIZE, POSITION, FAR = 3, (2, 8), 0.06, 32, 1024  # positions of the requests' roots; `FAR` shows what context costs


def time_steps(executor: Runner, *, most_requests: int, token_budget: int, context: int) -> StepCost:
    """context: most tokens of a request."""
    pages, page_size = executor.pool.data.shape[1] // executor.pool.page_size - 1, executor.pool.page_size
    begin = time.perf_counter()
    found: list[tuple[StepWork, float]] = []
    for n in REQUESTS:
        position = min(POSITION, context // 2)
        fits = n * (-(-(position + 16) // page_size)) <= pages and n * 5 <= token_budget
        if found and (not fits or n > most_requests or time.perf_counter() - begin > SECONDS):
            break
        settings = SETTINGS if n in REQUESTS[::2] else SETTINGS[:1]
        found += _time(executor, n, position, settings, begin + 2 * SECONDS)
        if n == 4 and FAR + 16 < context and n * (FAR + 16) < pages * page_size:
            found += _time(executor, n, FAR, SETTINGS[:1], begin + 2 * SECONDS)
    cfg = executor.model.config
    experts = (cfg.n_routed_experts, cfg.num_experts_per_tok) if cfg.n_routed_experts else (1, 1)
    return fit(found, experts)


def _time(
    executor: Runner, n: int, position: int, settings: tuple[tuple[int, int], ...], end: float
) -> list[tuple[StepWork, float]]:
    took: dict[tuple[int, int], list[float]] = {s: [] for s in settings}
    works: dict[tuple[int, int], StepWork] = {}
    drafts: list[list[int]] = []
    begin = time.perf_counter()
    for at in range(ROUNDS[1]):
        if at >= ROUNDS[0] and time.perf_counter() - begin > PER_SIZE:
            break
        for setting in settings:
            verified, made = setting
            plan = _plan(executor, n, position, [d[:verified] for d in drafts] or [[1] * verified] * n, made)
            for repeat in range(1 + STEPS):
                start = time.perf_counter()
                result = executor.run(plan)
                seconds = time.perf_counter() - start
                if result.work is not None and repeat:  # a step after one of another kind is slower
                    took[setting].append(seconds)
                    works[setting] = result.work
            if made == 4 and not drafts:
                drafts = [list(r.draft.tokens) + [1] * 4 for r in result.rows]
        if time.perf_counter() > end:
            break
    executor.drafter.forget([str(i) for i in range(n)])
    return [(work, min(took[setting])) for setting, work in works.items()]


def _plan(executor: Runner, n: int, position: int, drafts: list[list[int]], made: int) -> Plan:
    luck = random.Random(n)
    page_size, vocabulary = executor.pool.page_size, executor.model.config.vocab_size
    pages = -(-(position + 16) // page_size)
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    rows = []
    for i in range(n):
        root = luck.randrange(vocabulary)
        row = Row(
            rid=str(i), tokens=[root, *drafts[i]], start=position,
            draft=Draft(drafts[i]) if drafts[i] else NO_DRAFT, chooses=True, following=-1,
            pages=range(1 + i * pages, 1 + (i + 1) * pages), draft_next=made, room=64, params=params,
            history=[root] * (position + 1), num_prompt=position, end_ids=frozenset(), extend=made > 0,
        )  # fmt: skip
        rows.append(row)
    return Plan(rows, [str(i) for i in range(n)])
