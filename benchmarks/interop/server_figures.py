"""A nextn server's own counts of a load, from the differences of its /metrics."""

from __future__ import annotations

from collections.abc import Mapping

import httpx
from clients import Figures
from prometheus_client.parser import text_string_to_metric_families

Totals = Mapping[str, float]


def read_totals(url: str) -> Totals:
    text = httpx.get(url + "/metrics", trust_env=False).raise_for_status().text
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("nextn:") and sample.name.endswith(("_total", "_sum", "_count")):
                name = sample.name.removeprefix("nextn:")
                totals[name] = totals.get(name, 0.0) + sample.value  # summed over draft depths
    return totals


def counted(before: Totals, after: Totals, concurrency: int) -> Figures:
    """The server's results for a load. The throughput assumes that all `concurrency` streams always run."""
    new = {name: after[name] - before.get(name, 0.0) for name in after}

    def mean_ms(name: str) -> float:
        return 1000 * new[f"{name}_seconds_sum"] / new[f"{name}_seconds_count"]

    requests, tokens, steps = (
        new["num_requests_total"], new["generation_tokens_total"], new["spec_verify_steps_total"]
    )  # fmt: skip
    found = {
        "requests": requests,
        "input_tokens": new["prompt_tokens_total"],
        "output_tokens": tokens,
        "output_throughput": tokens * concurrency / new["e2e_request_latency_seconds_sum"],
        "e2e_ms": mean_ms("e2e_request_latency"),
        "ttft_ms": mean_ms("time_to_first_token"),
        "tpot_ms": mean_ms("inter_token_latency"),
        "step_ms": 1000 * new["inter_token_latency_seconds_sum"] / steps,
    }
    if new.get("spec_draft_tokens_total"):
        found["accept_length"] = (tokens - requests) / steps  # a request's first token comes from prefill
    return found
