"""The mean time of a load's requests by stage, from the measurements of client and servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from nextn.bench.measure import Metrics
from nextn.bench.totals import mean_seconds

Totals = tuple[Mapping[str, float], Mapping[str, float]]  # of one server, before and after the load


@dataclass(frozen=True)
class Stages:
    """Milliseconds of a mean request in each stage, in order. They add up to the client's mean latency."""

    gateway: float  # HTTP, tokenizer, and the gateway if there is one
    queue: float  # before the request's first step
    prefill: float
    transfer: float  # from the end of prefill until the decode server starts on the request
    first: float  # the decode server's first step
    decode: float  # the other tokens

    @staticmethod
    def of_one(load: Metrics, server: Totals) -> Stages:
        queue, ttft, e2e = (1e3 * mean_seconds(*server, name) for name in HISTOGRAMS)
        return Stages(max(0.0, load.e2e_ms.mean - e2e), queue, ttft - queue, 0.0, 0.0, e2e - ttft)

    @staticmethod
    def of_two(load: Metrics, prefill: Totals, decode: Totals) -> Stages:
        """A decode server's queue time is the wait for pages. It covers the prefill server's queue and
        prefill; the rest is transfer."""
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
