"""The statistics of an engine that drafts."""

from __future__ import annotations

from nextn.stats import EngineStats, SpecStats


def stats(steps: int, accepted: int, running: int = 1) -> EngineStats:
    """Statistics after `steps` decode steps of one request with two drafts each, of which `accepted` were
    accepted."""
    spec = SpecStats()
    for _ in range(steps):
        spec.add(2, accepted, accepted + 1)
    return EngineStats(
        running=running, used_tokens=32, total_tokens=64, decode_steps=steps, prompt_tokens=10,
        cached_tokens=4, generated_tokens=spec.committed, spec=spec,
    )  # fmt: skip
