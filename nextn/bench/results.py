"""The results of the demo as plain data. The table, the plot, the page and results.json are made from it."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from nextn.bench.completion import Completion
from nextn.bench.machine import Machine
from nextn.bench.measure import Metrics
from nextn.bench.texts import Texts
from nextn.drafting_state import DraftingState
from nextn.stats import SpecStats


@dataclass(frozen=True)
class Side:
    """The rounds of one server at one concurrency. Each property is the median over the rounds."""

    rounds: list[Metrics]

    @property
    def output_throughput(self) -> float:
        return self._median(lambda f: f.output_throughput)

    @property
    def mean_ttft_ms(self) -> float:
        return self._median(lambda f: f.ttft_ms.mean)

    @property
    def mean_tpot_ms(self) -> float:
        return self._median(lambda f: f.tpot_ms.mean)

    @property
    def mean_e2e_ms(self) -> float:
        return self._median(lambda f: f.e2e_ms.mean)

    def _median(self, of: Callable[[Metrics], float]) -> float:
        return statistics.median(of(f) for f in self.rounds)


@dataclass(frozen=True)
class Point:
    """The results at one concurrency. `spec`: speculation with MTP, summed over all rounds. `auto`: state of
    automatic depth in the last round with MTP; None if the depth is fixed."""

    concurrency: int
    prompts: int
    without: Side
    with_mtp: Side
    spec: SpecStats
    auto: DraftingState | None = None

    @property
    def ratio(self) -> float:
        """Output tokens/s with MTP over those without."""
        return self.with_mtp.output_throughput / self.without.output_throughput

    @property
    def no_drafts(self) -> DraftingState | None:
        """`auto` if automatic depth made no drafts at this load; None if there were drafts."""
        return None if self.auto is None or self.auto.drafting else self.auto


@dataclass(frozen=True)
class Results:
    model: str
    engine: dict[str, Any]  # the server's start-up report: dtype, device, threads, ...
    num_steps: int | str  # draft depth, or "auto"
    max_tokens: int
    questions: bool  # prompts are questions; then a text can end before max_tokens
    temperature: float  # of the sampled prompts, which have seeds; the others were greedy
    sampled: int  # number of sampled prompts
    machine: Machine
    points: list[Point]
    texts: Texts
    completion: Completion
    seconds: float  # from the first warm-up request to the last text

    def as_dict(self) -> dict[str, Any]:
        differences = self.texts.differences
        return {
            "model": self.model,
            "num_drafts": self.num_steps,
            "max_tokens": self.max_tokens,
            "prompts": "questions" if self.questions else "code",
            "temperature": self.temperature,
            "sampled": self.sampled,
            "points": [_point(p) for p in self.points],
            "texts": {
                "prompts": self.texts.prompts,
                "compared": self.texts.compared,
                "differ": len(differences),
                "first_difference": dataclasses.asdict(differences[0]) if differences else None,
            },
            "machine": dataclasses.asdict(self.machine),
            "engine": self.engine,
            "seconds": self.seconds,
        }

    def as_json(self) -> str:
        """JSON on one line."""
        return json.dumps(rounded(self.as_dict()))


def _point(point: Point) -> dict[str, Any]:
    return {
        "concurrency": point.concurrency,
        "prompts": point.prompts,
        "ratio": point.ratio,
        "accept_length": point.spec.accept_length,
        "acceptance": point.spec.accept_rates,
        "auto": None if point.auto is None else dataclasses.asdict(point.auto),
        "without_mtp": _side(point.without),
        "with_mtp": _side(point.with_mtp),
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "output_throughput": side.output_throughput,
        "mean_ttft_ms": side.mean_ttft_ms,
        "mean_tpot_ms": side.mean_tpot_ms,
        "rounds": [dataclasses.asdict(f) for f in side.rounds],
    }


def rounded(value: Any) -> Any:
    """A copy with every float rounded to four places."""
    if isinstance(value, float):
        return round(value, 4)
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    return [rounded(v) for v in value] if isinstance(value, list) else value
