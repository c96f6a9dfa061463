"""Made-up requests that an executor runs at start-up, to measure step times or to check results."""

from __future__ import annotations

import random
from collections.abc import Sequence

from nextn.draft import NO_DRAFT, Draft
from nextn.engine.executor import Executor, ExecutorInfo
from nextn.request import SamplingParams
from nextn.scheduler.plan import Plan, SpanPlan
from nextn.speculative.state import RequestState


def add_made_up(
    executor: Executor, rid: str, tokens: Sequence[int], params: SamplingParams, more: int
) -> None:
    """Adds a request with these tokens. more: number of tokens that it may get in addition."""
    executor.add(RequestState(rid, params, list(tokens), len(tokens), len(tokens) + more, frozenset()))


def made_up_span(
    rid: str, number: int, start: int, known: int, draft: Draft, *,
    each: int, pages: int, num_steps: int, extend: bool,
) -> SpanPlan:  # fmt: skip
    """A span of request `number`, which has `each` of the `pages` pages after the pool's first one."""
    own = [1 + (number * each + k) % pages for k in range(each)]
    return SpanPlan(
        rid, start, known, draft, chooses=True, first_page=0, pages=own, num_steps=num_steps, extend=extend
    )


def add_alike(executor: Executor, n: int, position: int) -> None:
    """Adds n requests, "0", "1", ..., whose last token is at `position`. Each repeats one token."""
    greedy = SamplingParams(max_tokens=64, temperature=0.0, ignore_eos=True)
    for i in range(n):
        token = random.Random(i).randrange(executor.info.vocab_size)
        add_made_up(executor, str(i), [token] * (position + 1), greedy, 64)


def plan_alike(
    info: ExecutorInfo,
    drafts: Sequence[Sequence[int]],
    position: int,
    known: int,
    num_steps: int,
    beyond: int,
) -> Plan:
    """A plan with the last `known` tokens of such requests and these drafts. beyond: slots for trees."""
    options = {"each": -(-(position + 16 + beyond) // info.page_size), "pages": info.pages}
    start, extend = position + 1 - known, num_steps > 0
    return Plan(
        [
            made_up_span(
                str(i), i, start, known, Draft(draft) if draft else NO_DRAFT,
                num_steps=num_steps, extend=extend, **options,
            ) for i, draft in enumerate(drafts)
        ]
    )  # fmt: skip
