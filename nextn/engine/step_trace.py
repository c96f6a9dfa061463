"""What a trace says of a step."""

from __future__ import annotations

from nextn.scheduler.plan import Plan, StepResult
from nextn.trace import TRACE, Laps


def stepped(lap: Laps, plan: Plan, result: StepResult) -> None:
    """A step with requests has ended; `lap` began with it. tokens: committed. rows: of the target. drafts: of
    them. extended, passes: rows of the drafter's first pass, and how many passes followed."""
    if not TRACE.on:
        return
    counts = {"requests": len(plan.spans), "tokens": sum(len(span.tokens) for span in result.spans)}
    if (work := result.work) is not None:
        counts |= {"rows": work.rows, "decoding": work.requests, "drafts": work.drafts}
        counts |= {"extended": work.extended, "passes": len(work.passes)}
    lap.whole("step", **counts)
    TRACE.stepped()
