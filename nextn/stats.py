"""Counters of one engine since its start."""

from __future__ import annotations

from dataclasses import dataclass, field

from nextn.drafting_state import DraftingState
from nextn.expert_load import ShardRows
from nextn.waits import Phase


@dataclass(slots=True)
class SpecStats:
    """The results of speculation. Index j of `proposed` and `accepted` is draft depth j + 1; index i of
    `histogram` counts the verify steps that accepted i drafts."""

    verify_steps: int = 0  # decode steps, with drafts or without
    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    committed: int = 0  # tokens committed by those steps, bonus included
    histogram: list[int] = field(default_factory=list)
    lossy: bool = False  # whether any text followed another distribution than the target's
    simulated: bool = False  # whether drafts were accepted at random; then the text is meaningless

    def add(self, proposed: int, accepted: int, committed: int, times: int = 1) -> None:
        """Counts `times` equal decode steps of a request."""
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
        """The counts since `earlier`. Depths that `earlier` does not have count from zero."""

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
    def lossless(self) -> bool:
        """Whether the target could have written the text: no lossy verification, no simulated acceptance."""
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
    """Counts of a prefill or decode server: pages of prompts that went to, or came from, other servers."""

    active: int = 0  # requests whose pages are in transfer or awaited
    finished: int = 0  # requests whose pages all arrived
    failed: int = 0  # requests whose pages did not all arrive
    fallbacks: int = 0  # failed requests whose prompt the decode server computed itself
    pages: int = 0
    bytes: int = 0
    seconds: float = 0.0  # sum over finished requests, each from the time when its pages were asked for


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
    phases: dict[str, Phase] = field(default_factory=dict)  # by `PHASES`; empty: there is only one rank
    sent: int = 0  # bytes that the ranks sent to other ranks that share the experts
    auto: DraftingState | None = None  # None: the depth is fixed
    shard_rows: ShardRows | None = None  # None: experts are not shared
    transfer: TransferStats | None = None  # None: neither a prefill nor a decode server

    @property
    def waited(self) -> float:
        """Total seconds for which the first rank waited for the others."""
        return sum(phase.waits.total for phase in self.phases.values())
