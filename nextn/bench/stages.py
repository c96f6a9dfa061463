"""Where the time of requests went: means of one load, from what client and servers measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nextn.bench.measure import Metrics
from nextn.bench.totals import mean_seconds

Totals = tuple[Mapping[str, float], Mapping[str, float]]  # of one server, before and after


@dataclass(frozen=True)
class Stages:
    """Milliseconds of a mean request, one stage after another; together what the client saw."""

    gateway: float  # HTTP, tokenizer, and the gateway where there is one
    queue: float  # before its first step
    prefill: float
    transfer: float  # after the prompt was computed, until the decode server went on with it
    first: float  # the decode server's first step
    decode: float  # the other tokens

    @staticmethod
    def of_one(load: Metrics, server: Totals) -> Stages:
        queue, ttft, e2e = (1e3 * mean_seconds(*server, name) for name in HISTOGRAMS)
        return Stages(max(0.0, load.e2e_ms.mean - e2e), queue, ttft - queue, 0.0, 0.0, e2e - ttft)

    @staticmethod
    def of_two(load: Metrics, prefill: Totals, decode: Totals) -> Stages:
        """A decode server's queue is the wait for pages; what of it the prefill server does not account for
        is transfer."""
        queue, _, computed = (1e3 * mean_seconds(*prefill, name) for name in HISTOGRAMS)
        waited, ttft, e2e = (1e3 * mean_seconds(*decode, name) for name in HISTOGRAMS)
        queue = min(queue, waited)
        computing = max(0.0, min(computed, waited) - queue)
        gateway, transfer = max(0.0, load.e2e_ms.mean - e2e), waited - queue - computing
        return Stages(gateway, queue, computing, transfer, ttft - waited, e2e - ttft)


HISTOGRAMS = ("queue_time", "time_to_first_token", "e2e_request_latency")
NAMES = {
    "gateway": "HTTP, gateway", "queue": "queue", "prefill": "prefill", "transfer": "transfer",
    "first": "first token", "decode": "decode",
}  # fmt: skip
