"""What `nextn top` shows: one frame of text from one scrape."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator

from nextn.terminal.scrape import Scrape

BAR = 20  # characters
LATENCIES = (
    ("TTFT", "time_to_first_token_seconds"),
    ("TPOT", "time_per_output_token_seconds"),
    ("end to end", "e2e_request_latency_seconds"),
)
QUANTILES = (0.5, 0.9, 0.99)


class Window:
    """The scrapes of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._kept: deque[Scrape] = deque()

    def push(self, scrape: Scrape) -> Scrape:
        """Adds a scrape and returns the difference over the window. After the first scrape, and after a
        restart of the server, it returns the server's whole life."""
        self._kept.append(scrape)
        while len(self._kept) > 2 and scrape.at - self._kept[1].at >= self.seconds:
            self._kept.popleft()
        between = scrape.since(self._kept[0]) if len(self._kept) > 1 else None
        if between is None:
            self._kept = deque([scrape])
            return scrape
        return between


def frame(title: str, scrape: Scrape) -> str:
    return "".join(f"{name:14}{what}".rstrip() + "\n" for name, what in lines(title, scrape))


def lines(title: str, s: Scrape) -> Iterator[tuple[str, str]]:
    """The lines of a frame as (label, value)."""
    span = "since it was started" if s.seconds is None else f"over the last {s.seconds:.0f} s"
    yield "nextn top", f"{title}, {span}"
    yield "", ""
    yield (
        "requests",
        f"{count(s.get('num_running_reqs'))} running, {count(s.get('num_queue_reqs'))} queued; "
        f"{count(s.get('num_requests_total'))} came, {count(s.get('num_aborted_requests_total'))} given up",
    )
    yield "tokens/s", throughput(s)
    for name, histogram in LATENCIES:
        spread = s.distribution(histogram)
        shown = [f"p{q * 100:.0f} {milliseconds(spread.quantile(q))}" for q in QUANTILES]
        yield name, "   ".join(shown)
    used, total = s.get("num_used_tokens"), s.get("max_total_num_tokens")
    yield "KV cache", f"{bar(used / total if total else math.nan)}   {count(used)} of {count(total)} tokens"
    hits = s.ratio("cached_tokens_total", "prompt_tokens_total")
    yield "prefix cache", f"{bar(hits)}   of {count(s.get('prompt_tokens_total'))} prompt tokens"
    length = s.ratio("spec_committed_tokens_total", "spec_verify_steps_total")
    yield "accept length", f"{length:.2f}" if math.isfinite(length) else "-"
    gain = s.get("auto_draft_gain")
    if math.isfinite(gain):
        now = "drafting; drafts make" if s.get("auto_drafting") else "not drafting; drafts would make"
        yield "auto depth", f"{now} {gain:.2f} x"
    drafted = zip(s.by_position("spec_accepted_tokens"), s.by_position("spec_draft_tokens"), strict=True)
    for depth, (held, of) in enumerate(drafted, 1):
        share = held / of if of else math.nan
        yield f"draft {depth}", f"{bar(share)}   {count(held)} of {count(of)} accepted"


def throughput(s: Scrape) -> str:
    if s.seconds is None:
        return f"{count(s.get('gen_throughput'))} generated now"
    generated, prompt = s.get("generation_tokens_total"), s.get("prompt_tokens_total")
    return f"{count(generated / s.seconds)} generated, {count(prompt / s.seconds)} of prompts"


def bar(share: float) -> str:
    """
    >>> bar(0.25)
    '[#####...............]  25 %'
    """
    full = round(BAR * share) if math.isfinite(share) else 0
    text = f"{share:4.0%}".replace("%", " %") if math.isfinite(share) else "   - "
    return f"[{'#' * full}{'.' * (BAR - full)}] {text}"


def count(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "-"


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.0123), milliseconds(4.5)
    ('  12.3 ms', '   4.50 s')
    """
    if not math.isfinite(seconds):
        return "      -  "
    return f"{seconds * 1e3:6.1f} ms" if seconds < 1 else f"{seconds:7.2f} s"
