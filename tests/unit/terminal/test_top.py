"""Frames of `nextn top`, from the metrics of a server."""

from __future__ import annotations

from nextn.draft import DraftingState
from nextn.request import SpecStats
from nextn.server.monitoring.metrics import Metrics
from nextn.server.process.engine_client import EngineClient
from nextn.server.process.engine_metrics import EngineMetrics
from nextn.stats import EngineStats
from nextn.terminal.scrape import Scrape
from nextn.terminal.top import Window, frame

FRAME = """\
nextn top     the server, since it was started

requests      2 running, 1 queued; 5 came, 1 given up
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


def test_a_frame() -> None:
    assert frame("the server", look(server(), 0.0)) == FRAME


def test_automatic_depth() -> None:
    metrics = server()
    metrics.engine.metrics.stats.auto = DraftingState(False, 2, 0.94, "")
    text = frame("the server", look(metrics, 0.0))
    assert "accept length 2.30\nauto depth    not drafting; drafts would make 0.94 x\ndraft 1" in text
    metrics.engine.metrics.stats.auto = DraftingState(True, 2, 1.309, "")
    assert "auto depth    drafting; drafts make 1.31 x\n" in frame("the server", look(metrics, 0.0))


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
