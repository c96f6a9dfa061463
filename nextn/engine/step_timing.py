"""What steps cost on this machine: whole steps of made-up requests, timed at start-up on the executor that
will serve, for growing numbers of requests. The pages that they write are written over before they are read.
"""

from __future__ import annotations

import random
import time
from statistics import median

from nextn.draft import NO_DRAFT, Draft
from nextn.engine.runner import Runner
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, Row
from nextn.speculative.depth.cost import StepCost, fit
from nextn.speculative.work import StepWork

REQUESTS = (1, 2, 4, 8, 16, 32, 64)
SETTINGS = ((0, 0), (0, 1), (0, 4), (2, 1), (4, 2))  # (drafts verified, made)
SECONDS = 0.5  # after which no larger batch is begun; an eighth of them for each, but two rounds at least
STEPS = 3  # of one setting in a row, after one that does not count
POSITIONS = (32, 1024)  # that requests read; the difference shows what context costs
CALM = 1.2  # times its least, the usual time of a step on a machine that does nothing else


def time_steps(
    executor: Runner, *, most_requests: int, token_budget: int, context: int, beyond: int
) -> tuple[StepCost, bool]:
    """context: most tokens of a request. beyond: slots that its trees take past them. Returns the cost, and
    whether steps that are alike took about as long, as on a machine that does nothing else."""
    pool, begin = executor.pool, time.perf_counter()
    slots = pool.data.shape[1] - pool.page_size
    near, far = POSITIONS
    found: dict[StepWork, list[float]] = {}
    for n in REQUESTS:
        late = time.perf_counter() - begin > SECONDS
        if found and (late or n > most_requests or 5 * n > token_budget or n * (near + 32 + beyond) > slots):
            break
        settings = SETTINGS if n in REQUESTS[::2] else SETTINGS[:1]
        _time(executor, n, min(near, context // 2), beyond, settings, found)
        if n == 4 and min(context, slots // n) > far + 32 + beyond:
            _time(executor, n, far, beyond, SETTINGS[:1], found)
    cfg = executor.model.config
    experts = (cfg.n_routed_experts, cfg.num_experts_per_tok) if cfg.n_routed_experts else (1, 1)
    cost = fit([(work, min(took)) for work, took in found.items()], experts)
    return cost, median(median(took) / min(took) for took in found.values()) < CALM


def _time(
    executor: Runner, n: int, position: int, beyond: int, settings: tuple[tuple[int, int], ...],
    found: dict[StepWork, list[float]],
) -> None:  # fmt: skip
    drafts = [[1] * 4] * n
    begin = time.perf_counter()
    rounds = 0
    while rounds < 2 or time.perf_counter() - begin < SECONDS / 8:
        rounds += 1
        for verified, made in settings:
            plan = _plan(executor, position, beyond, [d[:verified] for d in drafts], made)
            for step in range(1 + STEPS):
                start = time.perf_counter()
                result = executor.run(plan)
                seconds = time.perf_counter() - start
                if step and result.work is not None:
                    found.setdefault(result.work, []).append(seconds)
            if made == 4:
                drafts = [[*r.draft.tokens, 1, 1, 1, 1] for r in result.rows]
    for i in range(n):
        executor.drop(str(i))


def _plan(executor: Runner, position: int, beyond: int, drafts: list[list[int]], made: int) -> Plan:
    luck = random.Random(len(drafts))
    size, vocabulary = executor.pool.page_size, executor.model.config.vocab_size
    each, there_are = -(-(position + 16 + beyond) // size), executor.pool.data.shape[1] // size - 1
    params = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    rows = []
    for i, draft in enumerate(drafts):
        tokens = [luck.randrange(vocabulary), *draft]
        rows.append(Row(
            rid=str(i), tokens=tokens, start=position, draft=Draft(draft) if draft else NO_DRAFT,
            chooses=True, following=-1, pages=[1 + (i * each + k) % there_are for k in range(each)],
            draft_next=made, room=64, params=params, history=[tokens[0]] * (position + 1),
            num_prompt=position, end_ids=frozenset(), extend=made > 0,
        ))  # fmt: skip
    return Plan(rows, [row.rid for row in rows])
