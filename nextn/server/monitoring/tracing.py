"""--otlp-traces-endpoint: sends a span for each choice to an OpenTelemetry collector, with child spans for
waiting, prompt and decode. A client's `traceparent` becomes the parent. Needs the extra `trace`.

Spans are made when a choice has ended, from times that the server notes anyway. They cost nothing before
that.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import nextn
from nextn.server.answers.choice import Choice
from nextn.server.protocol.context import trace_headers
from nextn.server.protocol.errors import ApiError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

EXPORT_SECONDS = 2  # short, because a collector that does not answer delays the server's end


class Tracing:
    """Makes spans and gives them to `exporter`. Needs the extra `trace`."""

    def __init__(self, model: str, exporter: SpanExporter) -> None:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self.api, self.model = trace, model
        service = {"service.name": "nextn", "service.version": nextn.__version__}
        self.provider = TracerProvider(resource=Resource.create(service), shutdown_on_exit=False)
        self.provider.add_span_processor(BatchSpanProcessor(exporter))
        self.tracer = self.provider.get_tracer("nextn", nextn.__version__)
        self.propagator = TraceContextTextMapPropagator()

    def ended(self, choice: Choice, arrival: float, error: ApiError | None = None) -> None:
        """Sends the spans of a choice that has ended. error: the reason, if it did not finish."""
        to_epoch = time.time() - time.perf_counter()
        params, done = choice.request.params, choice.finish_reason is not None
        span = self.tracer.start_span(
            "llm_request",
            context=self.propagator.extract(trace_headers.get({})),
            kind=self.api.SpanKind.SERVER,
            start_time=nanoseconds(arrival + to_epoch),
            attributes={
                "gen_ai.request.id": choice.id,
                "gen_ai.response.model": self.model,
                "gen_ai.request.max_tokens": params.max_tokens,
                "gen_ai.request.temperature": params.temperature,
                "gen_ai.request.top_p": params.top_p,
                "gen_ai.usage.input_tokens": choice.prompt_tokens,
                "gen_ai.usage.output_tokens": choice.completion_tokens,
                "nextn.cached_tokens": choice.cached_tokens,
                "nextn.accept_length": choice.spec.accept_length,
            },
        )
        end = choice.last_output if done else time.perf_counter()
        if choice.first_output:
            began = min(arrival + choice.queued, choice.first_output)
            span.set_attribute("gen_ai.latency.time_in_queue", choice.queued)
            span.set_attribute("gen_ai.latency.time_to_first_token", choice.first_output - arrival)
            within = self.api.set_span_in_context(span)
            parts = (
                ("waiting", arrival, began),
                ("prompt", began, choice.first_output),
                ("decode", choice.first_output, end),
            )
            for name, start, stop in parts:
                part = self.tracer.start_span(name, context=within, start_time=nanoseconds(start + to_epoch))
                part.end(nanoseconds(stop + to_epoch))
        span.set_attribute("gen_ai.latency.e2e", end - arrival)
        if choice.finish_reason is not None:
            span.set_attribute("gen_ai.response.finish_reasons", [choice.finish_reason])
        elif error is not None:
            span.set_status(self.api.StatusCode.ERROR, str(error))
        span.end(nanoseconds(end + to_epoch))

    def close(self) -> None:
        """Sends the remaining spans."""
        self.provider.shutdown()


def otlp(model: str, endpoint: str) -> Tracing:
    """A `Tracing` that sends to a collector's HTTP port. Raises ValueError if the extra is not installed."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError as e:
        raise ValueError(f"--otlp-traces-endpoint needs the extra: pip install 'nextn[trace]' ({e})") from e
    return Tracing(model, OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))


def nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
