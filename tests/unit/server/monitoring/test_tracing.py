"""Spans: one for each choice, its parts inside it, below the client's own."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from nextn.request import SamplingParams
from nextn.server.answers.choice import Choice
from nextn.server.monitoring.tracing import Tracing, otlp
from nextn.server.process.messages import NewRequest
from nextn.server.protocol.context import trace_headers
from nextn.server.protocol.errors import engine_dead
from nextn.stats import SpecStats

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = f"00-{TRACE}-b7ad6b7169203331-01"


@pytest.fixture
def tracing() -> Iterator[Tracing]:
    made = Tracing("tiny", InMemorySpanExporter())
    yield made
    made.close()


def a_choice(reason: str | None) -> Choice:
    """Two tokens were prompted, three came: after 1 s of waiting, 0.5 s of prompt and 2 s of decoding."""
    request = NewRequest("r", [1, 2], SamplingParams(max_tokens=9, temperature=0.5))
    choice = Choice(0, "mine", request, None)  # type: ignore[arg-type]
    choice.tokens, choice.finish_reason, choice.cached_tokens = [3, 4, 5], reason, 1
    choice.queued, choice.first_output, choice.last_output = 1.0, 101.5, 103.5
    choice.last_spec = SpecStats(verify_steps=2, committed=3)
    return choice


def spans(tracing: Tracing) -> dict[str, ReadableSpan]:
    tracing.provider.force_flush()
    (processor,) = tracing.provider._active_span_processor._span_processors
    exporter = processor.span_exporter  # type: ignore[attr-defined]
    return {span.name: span for span in exporter.get_finished_spans()}


def seconds(span: ReadableSpan) -> float:
    assert span.start_time is not None
    assert span.end_time is not None
    return round((span.end_time - span.start_time) / 1e9, 3)


def test_a_choice_and_its_parts(tracing: Tracing) -> None:
    token = trace_headers.set({"traceparent": PARENT})
    tracing.ended(a_choice("length"), 100.0)
    trace_headers.reset(token)
    found = spans(tracing)
    whole = found.pop("llm_request")
    assert {name: seconds(span) for name, span in found.items()} == {"waiting": 1, "prompt": 0.5, "decode": 2}
    assert seconds(whole) == 3.5
    for part in found.values():
        assert part.parent is not None
        assert part.parent.span_id == whole.context.span_id
        assert whole.start_time <= part.start_time <= part.end_time <= whole.end_time  # type: ignore[operator]
    assert f"{whole.context.trace_id:032x}" == TRACE
    assert whole.parent is not None
    assert f"{whole.parent.span_id:016x}" == PARENT.split("-")[2]
    shown = dict(whole.attributes or {})
    assert shown == {
        "gen_ai.request.id": "mine", "gen_ai.response.model": "tiny", "gen_ai.request.max_tokens": 9,
        "gen_ai.request.temperature": 0.5, "gen_ai.request.top_p": 1.0, "gen_ai.usage.input_tokens": 2,
        "gen_ai.usage.output_tokens": 3, "nextn.cached_tokens": 1, "nextn.accept_length": 1.5,
        "gen_ai.latency.time_in_queue": 1.0, "gen_ai.latency.time_to_first_token": 1.5,
        "gen_ai.latency.e2e": 3.5, "gen_ai.response.finish_reasons": ("length",),
    }  # fmt: skip
    assert whole.status.status_code is StatusCode.UNSET


@pytest.mark.parametrize("header", [None, "", "nonsense", PARENT[:-3]])
def test_without_a_parent_of_its_own(tracing: Tracing, header: str | None) -> None:
    token = trace_headers.set({} if header is None else {"traceparent": header})
    tracing.ended(a_choice("stop"), 100.0)
    trace_headers.reset(token)
    assert spans(tracing)["llm_request"].parent is None


def test_given_up_before_anything_came(tracing: Tracing) -> None:
    choice = a_choice(None)
    choice.first_output = 0.0
    tracing.ended(choice, time.perf_counter() - 2.0, engine_dead("the engine died"))
    (whole,) = spans(tracing).values()
    assert 2.0 <= seconds(whole) < 3.0
    assert (whole.status.status_code, whole.status.description) == (StatusCode.ERROR, "the engine died")


def test_a_collector_that_is_not_there_holds_up_nothing() -> None:
    made = otlp("tiny", "http://127.0.0.1:9/v1/traces")
    made.ended(a_choice("length"), 100.0)
    began = time.monotonic()
    made.close()
    assert time.monotonic() - began < 6
