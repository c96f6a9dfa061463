"""What speculation did during a load: the difference of two readings of the server's /metrics."""

from __future__ import annotations

import httpx
from prometheus_client.parser import text_string_to_metric_families

from nextn.bench.client import make_client
from nextn.bench.errors import BenchError
from nextn.request import SpecStats


async def read_spec(url: str) -> SpecStats:
    """The server's totals. Raises BenchError."""
    try:
        async with make_client(url) as client:
            response = await client.get("/metrics")
            response.raise_for_status()
    except httpx.HTTPError as e:
        raise BenchError(f"GET {url}/metrics: {type(e).__name__}: {e}") from e
    return parse_spec(response.text)


def parse_spec(metrics: str) -> SpecStats:
    """Raises BenchError when it is not the text of a nextn server's /metrics.

    A request's first token comes from its prompt's step, every other one from a verify step; so the
    verify steps committed `generation_tokens - num_requests` tokens.
    """
    samples = {
        (sample.name, sample.labels.get("position", "")): int(sample.value)
        for family in text_string_to_metric_families(metrics)
        for sample in family.samples
        if sample.name.startswith("nextn:") and sample.name.endswith("_total")
    }

    def by_depth(name: str) -> list[int]:
        depths = sorted(int(position) for known, position in samples if known == name)
        return [samples[name, str(depth)] for depth in depths]

    try:
        return SpecStats(
            verify_steps=samples["nextn:spec_verify_steps_total", ""],
            proposed=by_depth("nextn:spec_draft_tokens_total"),
            accepted=by_depth("nextn:spec_accepted_tokens_total"),
            committed=samples["nextn:generation_tokens_total", ""] - samples["nextn:num_requests_total", ""],
        )
    except KeyError as e:
        raise BenchError(f"/metrics has no {e.args[0][0]}; is it a nextn server?") from e


def difference(after: SpecStats, before: SpecStats) -> SpecStats:
    """What happened in between. Depths that `before` had not seen count from zero."""

    def less(now: list[int], then: list[int]) -> list[int]:
        return [n - t for n, t in zip(now, then + [0] * (len(now) - len(then)), strict=True)]

    return SpecStats(
        verify_steps=after.verify_steps - before.verify_steps,
        proposed=less(after.proposed, before.proposed),
        accepted=less(after.accepted, before.accepted),
        committed=after.committed - before.committed,
    )
