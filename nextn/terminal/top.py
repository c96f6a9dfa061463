"""Draws a frame of `nextn top`: its lines, from one scrape of a server's metrics."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from nextn.drafting_state import DraftingState, drafting_words
from nextn.terminal.scrape import Scrape

LABEL, BAR = 14, 20  # widths in characters: of a line's label, of a bar in plain text
TEXT_ROOM, SHORTEST, LONGEST = 50, 8, 60  # in colours: room beside a bar; minimum and maximum width of a bar
LATENCIES = (
    ("TTFT", "time_to_first_token_seconds"),
    ("TPOT", "time_per_output_token_seconds"),
    ("end to end", "e2e_request_latency_seconds"),
)
QUANTILES = (0.5, 0.9, 0.99)
DEPTH_COLOURS = ("blue", "cyan", "green", "magenta")  # repeated for deeper drafts


class Window:
    """The scrapes of the last `seconds`."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._kept: deque[Scrape] = deque()

    def push(self, scrape: Scrape) -> Scrape:
        """Adds a scrape and returns the difference over the window. For the first scrape, and after a restart
        of the server, it returns the scrape itself, with totals since the server's start."""
        self._kept.append(scrape)
        while len(self._kept) > 2 and scrape.at - self._kept[1].at >= self.seconds:
            self._kept.popleft()
        between = scrape.since(self._kept[0]) if len(self._kept) > 1 else None
        if between is None:
            self._kept = deque([scrape])
            return scrape
        return between


class Line(NamedTuple):
    """One line of a frame. share: filled part of a bar before the text, nan if not known; None: no bar."""

    label: str
    text: str
    share: float | None = None
    colour: str = ""


class Frame(NamedTuple):
    """The data of one frame. auto: state of automatic depth; None if the depth is fixed. trouble: why the
    data is old, or ""."""

    title: str
    scrape: Scrape
    auto: DraftingState | None = None
    trouble: str = ""

    def draw(self, out: Console) -> Text:
        """Lays the lines out for the current width of `out`, with colours if it has them."""
        plain = out.color_system is None
        width = BAR if plain else max(SHORTEST, min(LONGEST, out.width - LABEL - TEXT_ROOM))
        drawn = []
        for line in self.lines():
            text = Text.assemble((f"{line.label:{LABEL}}", "bold"))
            if line.share is not None:
                text.append_text(bar(line.share, width, "" if plain else line.colour)).append("   ")
            text.append(line.text, "" if line.share is not None else line.colour).rstrip()
            drawn.append(text)
        if not plain:
            drawn += [Text(), Text("q or Ctrl-C: quit", "dim")]
        return Text("\n", no_wrap=True, overflow="ellipsis").join(drawn)

    def lines(self) -> Iterator[Line]:
        s = self.scrape
        span = "since it was started" if s.seconds is None else f"over the last {s.seconds:.0f} s"
        yield Line("nextn top", f"{self.title}, {span}")
        yield Line("", self.trouble, colour="red")
        yield Line("requests", requests(s))
        yield Line("tokens/s", throughput(s))
        for name, histogram in LATENCIES:
            spread = s.distribution(histogram)
            shown = [f"p{q * 100:.0f} {milliseconds(spread.quantile(q))}" for q in QUANTILES]
            yield Line(name, "   ".join(shown))
        used, total = s.get("num_used_tokens"), s.get("max_total_num_tokens")
        share = used / total if total else math.nan
        yield Line("KV cache", f"{count(used)} of {count(total)} tokens", share, "yellow")
        hits = s.ratio("cached_tokens_total", "prompt_tokens_total")
        yield Line("prefix cache", f"of {count(s.get('prompt_tokens_total'))} prompt tokens", hits, "yellow")
        length = s.ratio("spec_committed_tokens_total", "spec_verify_steps_total")
        yield Line("accept length", f"{length:.2f}" if math.isfinite(length) else "-")
        if self.auto is not None:
            yield Line(
                "auto depth", drafting_words(self.auto), colour="green" if self.auto.drafting else "yellow"
            )
        yield from depths(s)


def requests(s: Scrape) -> str:
    running, queued = count(s.get("num_running_reqs")), count(s.get("num_queue_reqs"))
    received, aborted = count(s.get("num_requests_total")), count(s.get("num_aborted_requests_total"))
    return f"{running} running, {queued} queued; {received} received, {aborted} aborted"


def depths(s: Scrape) -> Iterator[Line]:
    """Yields a line for each draft depth."""
    drafted = zip(s.by_position("spec_accepted_tokens"), s.by_position("spec_draft_tokens"), strict=True)
    for depth, (held, of) in enumerate(drafted, 1):
        colour = DEPTH_COLOURS[(depth - 1) % len(DEPTH_COLOURS)]
        share = held / of if of else math.nan
        yield Line(f"draft {depth}", f"{count(held)} of {count(of)} accepted", share, colour)


def throughput(s: Scrape) -> str:
    if s.seconds is None:
        return f"{count(s.get('gen_throughput'))} generated now"
    generated, prompt = s.get("generation_tokens_total"), s.get("prompt_tokens_total")
    return f"{count(generated / s.seconds)} generated, {count(prompt / s.seconds)} of prompts"


def bar(share: float, width: int, colour: str = "") -> Text:
    """A bar and its percentage; without a colour, in plain characters.

    >>> bar(0.25, 20).plain
    '[#####...............]  25 %'
    """
    full = round(width * share) if math.isfinite(share) else 0
    text = f" {share:4.0%}".replace("%", " %") if math.isfinite(share) else "    - "
    if not colour:
        return Text(f"[{'#' * full}{'.' * (width - full)}]{text}")
    return Text.assemble(("━" * full, colour), ("━" * (width - full), "dim"), text)


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
