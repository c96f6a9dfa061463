"""Counters of one engine, totals since it started."""

from __future__ import annotations

from dataclasses import dataclass, field

from nextn.drafting_state import DraftingState
from nextn.expert_load import ShardRows


@dataclass(slots=True)
class SpecStats:
    """What speculation did. Index j of `proposed` and `accepted` is draft depth j + 1; index i of `histogram`
    counts the verify steps that accepted i drafts."""

    verify_steps: int = 0  # decode steps, with drafts or without
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    committed: int = 0  # tokens those steps committed, bonus included
    histogram: list[int] = field(default_factory=list)
    lossy: bool = False  # did any of it follow another distribution than the target's?
    simulated: bool = False  # were drafts accepted by lot? The text is nobody's choice then

    def add(self, proposed: int, accepted: int, committed: int, times: int = 1) -> None:
        """A decode step of a request; so many alike."""
        self.verify_steps += times
        self.committed += committed * times
        if proposed:
            if proposed > len(self.proposed):
                _lengthen(self.proposed, proposed)
                _lengthen(self.accepted, proposed)
            counts = self.proposed
            for j in range(proposed):
                counts[j] += times
            counts = self.accepted
            for j in range(accepted):
                counts[j] += times
        if accepted >= len(self.histogram):
            _lengthen(self.histogram, accepted + 1)
        self.histogram[accepted] += times

    def merge(self, other: SpecStats) -> None:
        self.verify_steps += other.verify_steps
        self.committed += other.committed
        self.lossy |= other.lossy
        self.simulated |= other.simulated
        for mine, theirs in zip(self._lists(), other._lists(), strict=True):
            _lengthen(mine, len(theirs))
            for j, value in enumerate(theirs):
                mine[j] += value

    def since(self, earlier: SpecStats) -> SpecStats:
        """What happened after `earlier`. Depths that it had not seen count from zero."""

        def less(now: list[int], then: list[int]) -> list[int]:
            return [n - t for n, t in zip(now, then + [0] * (len(now) - len(then)), strict=True)]

        return SpecStats(
            verify_steps=self.verify_steps - earlier.verify_steps,
            proposed=less(self.proposed, earlier.proposed),
            accepted=less(self.accepted, earlier.accepted),
            committed=self.committed - earlier.committed,
            histogram=less(self.histogram, earlier.histogram),
            lossy=self.lossy,
            simulated=self.simulated,
        )

    @property
    def true(self) -> bool:
        """Is the text one that the target might have written?"""
        return not (self.lossy or self.simulated)

    def _lists(self) -> tuple[list[int], list[int], list[int]]:
        return self.proposed, self.accepted, self.histogram

    @property
    def accept_length(self) -> float:
        """Committed tokens per verify step, bonus included; 0.0 before the first decode step."""
        return self.committed / self.verify_steps if self.verify_steps else 0.0

    @property
    def accept_rate(self) -> float:
        """Drafts accepted / drafts proposed, all depths together."""
        return sum(self.accepted) / max(sum(self.proposed), 1)

    @property
    def accept_rates(self) -> list[float]:
        """Per depth: drafts accepted / drafts proposed."""
        return [a / p if p else 0.0 for a, p in zip(self.accepted, self.proposed, strict=True)]


def _lengthen(counts: list[int], length: int) -> None:
    counts.extend([0] * (length - len(counts)))


@dataclass(slots=True)
class TransferStats:
    """Of a prefill or a decode server: pages of prompts that went to, or came from, other servers."""

    active: int = 0  # requests whose pages are under way, or waited for
    finished: int = 0  # requests whose pages all arrived
    failed: int = 0  # requests of which pages were missing in the end
    fallbacks: int = 0  # of these, those whose prompt the decode server computed itself
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # of all finished ones, each from the time that its pages were asked for


@dataclass(slots=True)
class EngineStats:
    running: int = 0
    waiting: int = 0
    used_tokens: int = 0  # KV slots held by requests and by the prefix cache's locked part
    total_tokens: int = 0
    steps: int = 0
    decode_steps: int = 0  # steps in which at least one request decoded
    prompt_tokens: int = 0  # prompt tokens of admitted requests, cached ones included
    cached_tokens: int = 0
    generated_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retracted: int = 0
    spec: SpecStats = field(default_factory=SpecStats)
    waited: float = 0.0  # seconds for which the ranks waited for each other
    sent: int = 0  # bytes that the ranks sent to others with which they share experts
    auto: DraftingState | None = None  # None: the depth is fixed
    shard_rows: ShardRows | None = None  # None: experts are not shared
    transfer: TransferStats | None = None  # None: neither a prefill nor a decode server
