"""Frames of `nextn top`, from the metrics of a server."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console, Group
from rich.text import Text

from nextn.drafting_state import DraftingState
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.stats import EngineStats, SpecStats
from nextn.terminal.scrape import Scrape
from nextn.terminal.top import Frame, Window

FRAME = """\
nextn top     the server, since it was started

requests      2 running, 1 queued; 5 received, 1 aborted
tokens/s      230 generated now
TTFT          p50   15.0 ms   p90   19.0 ms   p99   19.9 ms
TPOT          p50    1.5 ms   p90    1.9 ms   p99    2.0 ms
end to end    p50    1.50 s   p90    1.90 s   p99    1.99 s
KV cache      [##########..........]  50 %   500 of 1,000 tokens
prefix cache  [#####...............]  25 %   of 40 prompt tokens
accept length 2.30
draft 1       [################....]  80 %   8 of 10 accepted
draft 2       [#####...............]  25 %   1 of 4 accepted
"""


def server() -> Metrics:
    metrics = Metrics(EngineClient(EngineMetrics(1)))
    spec = SpecStats(10, [10, 4], [8, 1], 23, [2, 7, 1])
    metrics.engine.metrics.on_step(
        EngineStats(
            decode_steps=10, generated_tokens=23, prompt_tokens=40, cached_tokens=10, running=2, waiting=1,
            used_tokens=500, total_tokens=1000, spec=spec,
        ),
        0.1,
    )  # fmt: skip
    metrics.requests, metrics.aborted = 5, 1
    for _ in range(4):
        metrics.ttft.observe(0.015)
        metrics.e2e.observe(1.5)
        metrics.tpot.observe(0.002)
        metrics.itl.observe(0.5)  # of a run of tokens; not what TPOT is
    return metrics


def look(metrics: Metrics, at: float) -> Scrape:
    return Scrape.read(metrics.render().decode(), at)


def drawn(shown: Frame, width: int = 100, colours: bool = False) -> list[str]:
    """The lines of a frame in a terminal, or, without colours, in a file."""
    system = "standard" if colours else None
    out = Console(file=io.StringIO(), width=width, force_terminal=colours, color_system=system)
    with out.capture() as capture:
        out.print(Group(shown.draw(out)), soft_wrap=not colours)
    return capture.get().splitlines()


def frame(title: str, scrape: Scrape) -> str:
    return "\n".join(drawn(Frame(title, scrape))) + "\n"


def test_a_frame() -> None:
    assert frame("the server", look(server(), 0.0)) == FRAME


@pytest.mark.parametrize("width", [30, 70, 100, 200])
def test_a_frame_in_colours_fits_its_terminal(width: int) -> None:
    lines = drawn(Frame("the server", look(server(), 0.0)), width, colours=True)
    plain = [Text.from_ansi(line).plain for line in lines]
    assert max(map(len, plain)) <= width
    assert len(lines) == len(FRAME.splitlines()) + 2  # and which keys there are
    bars = [line.count("━") for line in plain if "━" in line]
    assert len(bars) == 4
    assert set(bars) == {max(8, min(60, width - 64))}
    if width >= 70:
        assert plain[9].endswith("2.30")
        assert plain[10].endswith(" 80 %   8 of 10 accepted")
    first, second = (re.findall(r"\x1b\[(3\d)m", line) for line in lines if "draft " in line)
    assert first != second


def test_automatic_depth() -> None:
    """In the words of the log."""
    auto = DraftingState(False, 2, 0.94, "")
    lines = drawn(Frame("the server", look(server(), 0.0), auto))
    assert lines[9:11] == [
        "accept length 2.30",
        "auto depth    not drafting at 2 requests; drafts would make 0.94 x the tokens/s",
    ]


def test_no_answer() -> None:
    lines = drawn(Frame("the server", look(server(), 0.0), trouble="no answer"))
    assert lines[1] == "              no answer"
    assert lines[2:] == FRAME.splitlines()[2:]


def test_without_anything() -> None:
    """Nothing is divided by nothing."""
    text = frame("the server", look(Metrics(EngineClient()), 0.0))
    assert "accept length -\n" in text
    assert "[....................]    -    0 of 0 tokens" in text


def test_a_window_slides() -> None:
    metrics, window = server(), Window(10.0)
    assert window.push(look(metrics, 0.0)).seconds is None
    for at in (4.0, 8.0, 12.0, 16.0):
        metrics.requests += 1
        found = window.push(look(metrics, at))
    assert (found.seconds, found.get("num_requests_total")) == (12.0, 3)
    assert "over the last 12 s" in frame("the server", found)
    assert "0 generated, 0 of prompts" in frame("the server", found)


def test_a_server_started_anew() -> None:
    window = Window(10.0)
    window.push(look(server(), 0.0))
    assert window.push(look(Metrics(EngineClient()), 1.0)).seconds is None
    assert window.push(look(server(), 2.0)).seconds == 1.0
