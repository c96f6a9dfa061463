"""Requests that nobody sent: an executor runs them at start-up, to be timed or checked before it serves."""

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
    """more: tokens that it may get beyond these."""
    executor.add(RequestState(rid, params, list(tokens), len(tokens), len(tokens) + more, frozenset()))


def made_up_span(
    rid: str, number: int, start: int, known: int, draft: Draft, *,
    each: int, pages: int, num_steps: int, extend: bool,
) -> SpanPlan:  # fmt: skip
    """Of the request of that number, which has `each` of the `pages` behind the pool's first one."""
    own = [1 + (number * each + k) % pages for k in range(each)]
    return SpanPlan(
        rid, start, known, draft, chooses=True, first_page=0, pages=own, num_steps=num_steps, extend=extend
    )


def add_alike(executor: Executor, n: int, position: int) -> None:
    """Requests "0", "1" and on, whose last token is at that position; each repeats a token of its own."""
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
    """Of the last `known` tokens of such requests, and these drafts. beyond: slots that trees take."""
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
