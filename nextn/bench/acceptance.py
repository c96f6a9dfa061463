"""Results of speculation during a load: the difference of two readings of the server's counters.

The counters are nextn's or vLLM's. A server with neither may report SGLang's mean since its start. That mean
also covers requests before the load, so the result marks it (`Acceptance.lifetime`).
"""

from __future__ import annotations

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from nextn.bench.client import get, get_text
from nextn.bench.errors import BenchError
from nextn.stats import SpecStats


async def read_spec(url: str) -> SpecStats:
    """Reads the server's totals. Raises BenchError."""
    return parse_spec(await get_text(url, "/metrics"))


def parse_spec(metrics: str) -> SpecStats:
    """Sums the counters over replicas. Raises BenchError if the text is not a nextn server's /metrics."""
    samples: dict[tuple[str, str], int] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name.startswith("nextn:") and sample.name.endswith(("_total", "_simulated")):
                key = sample.name, sample.labels.get("position", "")
                samples[key] = samples.get(key, 0) + int(sample.value)

    def by_depth(name: str) -> list[int]:
        depths = sorted(int(position) for known, position in samples if known == name)
        return [samples[name, str(depth)] for depth in depths]

    try:
        return SpecStats(
            verify_steps=samples["nextn:spec_verify_steps_total", ""],
            proposed=by_depth("nextn:spec_draft_tokens_total"),
            accepted=by_depth("nextn:spec_accepted_tokens_total"),
            simulated=bool(samples.get(("nextn:spec_simulated", ""))),
            committed=samples["nextn:spec_committed_tokens_total", ""],
        )
    except KeyError as e:
        raise BenchError(f"/metrics has no {e.args[0][0]}; is it a nextn server?") from e


@dataclass(frozen=True)
class Acceptance:
    """Acceptance, as far as the server reports it. `length`: committed tokens per verify step; None if
    nothing was drafted."""

    length: float | None
    by_position: list[float]  # drafts accepted / proposed, by depth
    source: str  # the engine that reports the numbers: nextn, vllm or sglang
    lifetime: bool = False  # `length` covers all requests since the server started, warm-up included
    simulated: bool = False  # the server accepts drafts at random


async def read_counters(url: str, api_key: str | None) -> tuple[str, SpecStats] | None:
    """Returns the engine's name ("nextn" or "vllm") and its totals; None if the server has neither's
    counters."""
    try:
        text = await get_text(url, "/metrics", api_key)
        return ("nextn", parse_spec(text)) if "nextn:spec_" in text else ("vllm", parse_vllm(text))
    except (ValueError, BenchError):
        return None


def parse_vllm(metrics: str) -> SpecStats:
    """Sums vLLM's counters over all engines. Raises BenchError if they are missing.

    vLLM does not count proposals by depth. Each of its drafts proposes a token at every depth.
    """
    totals: dict[str, float] = {}
    accepted: dict[int, float] = {}
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            name = sample.name.removeprefix("vllm:spec_decode_").removesuffix("_total")
            if name == "num_accepted_tokens_per_pos":
                position = int(sample.labels["position"])
                accepted[position] = accepted.get(position, 0) + sample.value
            else:
                totals[name] = totals.get(name, 0) + sample.value
    if "num_drafts" not in totals or "num_accepted_tokens" not in totals:
        raise BenchError("/metrics has no vllm:spec_decode_num_drafts")
    drafts = int(totals["num_drafts"])
    return SpecStats(
        verify_steps=drafts,
        proposed=[drafts] * len(accepted),
        accepted=[int(accepted[position]) for position in sorted(accepted)],
        committed=drafts + int(totals["num_accepted_tokens"]),
    )


async def acceptance_since(
    url: str, before: tuple[str, SpecStats] | None, api_key: str | None
) -> Acceptance | None:
    """Acceptance since `before`, a result of `read_counters`. None if the server does not report it."""
    after = await read_counters(url, api_key)
    if before is not None and after is not None:
        found = after[1].since(before[1])
        drafted = any(found.proposed)
        return Acceptance(
            found.accept_length if drafted else None,
            found.accept_rates if drafted else [],
            after[0],
            simulated=found.simulated,
        )
    try:
        info = await get(url, "/server_info", api_key)
        state = info["decode"][0] if "decode" in info else info
        length = state["internal_states"][0]["avg_spec_accept_length"]
    except (BenchError, KeyError, IndexError, TypeError):
        return None
    return Acceptance(float(length), [], "sglang", lifetime=True) if length else None
