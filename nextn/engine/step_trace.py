"""The record of a step in a profile."""

from __future__ import annotations

from nextn.scheduler.plan import Plan, StepResult
from nextn.trace import TRACE, Laps


def stepped(lap: Laps, plan: Plan, result: StepResult) -> None:
    """Called after a step with requests; `lap` began with it. It records: tokens committed, rows of the
    target, drafts among these rows, rows of the drafter's first pass (extended), and its number of further
    passes."""
    if not TRACE.on:
        return
    counts = {"requests": len(plan.spans), "tokens": sum(len(span.tokens) for span in result.spans)}
    if (work := result.work) is not None:
        counts |= {"rows": work.rows, "decoding": work.requests, "drafts": work.drafts}
        counts |= {"extended": work.extended, "passes": len(work.passes)}
    lap.whole("step", **counts)
    TRACE.stepped()
