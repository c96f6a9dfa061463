"""What automatic depth does at the current load, for logs, metrics and HTTP. Plain data."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DraftingState:
    """What automatic depth does at the current load, and why.

    drafting: whether drafts are made. requests: number of requests that decode. gain: tokens/s with drafts
    divided by tokens/s without, predicted from measured costs and acceptance. reason: for people. tried:
    seconds of load since the last trial of the other kind of step; None: there was no trial yet."""

    drafting: bool
    requests: int
    gain: float
    reason: str
    tried: float | None = None


def drafting_words(auto: DraftingState) -> str:
    """Describes what automatic depth does. Every place that shows it uses this function.

    >>> drafting_words(DraftingState(False, 16, 0.94, "a step with drafts takes twice as long", 3.2))
    'not drafting at 16 requests; last tried 3 s ago; drafts would make 0.94 x the tokens/s (a step with drafts takes twice as long)'
    >>> drafting_words(DraftingState(True, 1, 1.5, ""))
    'drafting at 1 request; drafts make 1.50 x the tokens/s'
    """  # noqa: E501
    at = "1 request" if auto.requests == 1 else f"{auto.requests} requests"
    does, make = ("drafting", "make") if auto.drafting else ("not drafting", "would make")
    tried = "" if auto.drafting or auto.tried is None else f" last tried {auto.tried:.0f} s ago;"
    why = f" ({auto.reason})" if auto.reason else ""
    return f"{does} at {at};{tried} drafts {make} {auto.gain:.2f} x the tokens/s{why}"
