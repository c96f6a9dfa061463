"""The results of a comparison as plain data. The tables, plots, page and results.json are made from it."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nextn.bench import results
from nextn.bench.client import Load
from nextn.bench.dev.sweep.identity import Identity
from nextn.bench.dev.sweep.plan import Level
from nextn.bench.dev.sweep.scenarios import Scenario
from nextn.bench.machine import Machine
from nextn.bench.measure import Metrics, calculate_metrics
from nextn.stats import SpecStats


@dataclass
class Cell:
    """All rounds of one side at one load."""

    rounds: list[Metrics] = field(default_factory=list)
    spec: SpecStats | None = None  # speculation over all rounds; None: the server does not report it
    lifetime: float | None = None  # accept length since the server started, if it reports only that
    failures: Counter[str] = field(default_factory=Counter)  # failed requests by kind
    first_failures: dict[str, str] = field(default_factory=dict)  # kind -> message

    def add(self, load: Load, spec: SpecStats | None) -> Metrics:
        found = calculate_metrics(load)
        self.rounds.append(found)
        if spec is not None:
            self.spec = self.spec or SpecStats()
            self.spec.merge(spec)
        for failure in load.failures:
            self.failures[failure.kind] += 1
            self.first_failures.setdefault(failure.kind, str(failure))
        return found

    @property
    def median(self) -> results.Side:
        return results.Side(self.rounds)

    @property
    def accept_length(self) -> float | None:
        """Tokens that a verify step commits; None if nothing was drafted or it is not known."""
        if self.spec is not None:
            return self.spec.accept_length if any(self.spec.proposed) else None
        return self.lifetime

    @property
    def accept_rates(self) -> list[float]:
        """Drafts accepted over proposed, by depth."""
        return self.spec.accept_rates if self.spec is not None and any(self.spec.proposed) else []

    @property
    def simulated(self) -> bool:
        """Whether drafts were accepted at random."""
        return self.spec is not None and self.spec.simulated


@dataclass
class Row:
    """All sides at one load."""

    level: Level
    cells: list[Cell]

    def ratio(self, side: int) -> float:
        """How much better a side is than the first side: the median over rounds of its output tokens/s over
        the first side's in the same round. A request rate fixes the throughput, so there it is the first
        side's mean latency over this side's. Rounds are compared one by one, because a machine that slows
        down slows neighbouring turns equally."""
        rounds = zip(self.cells[0].rounds, self.cells[side].rounds, strict=True)
        if self.level.concurrency is None:
            return statistics.median(base.e2e_ms.mean / this.e2e_ms.mean for base, this in rounds)
        return statistics.median(this.output_throughput / base.output_throughput for base, this in rounds)

    @property
    def best(self) -> int:
        """Index of the side with the largest ratio; the first of equal ones."""
        return max(range(len(self.cells)), key=self.ratio)


@dataclass(frozen=True)
class SideInfo:
    """A side, for the report. `where`: its options of `nextn serve`, or its URL."""

    name: str
    where: str
    backend: str
    model: str | None
    engine: dict[str, Any]


@dataclass(frozen=True)
class Results:
    sides: Sequence[SideInfo]
    scenarios: Sequence[tuple[Scenario, list[Row]]]
    rounds: int
    temperature: float
    salt: str | None  # makes the new beginnings of prompts in every round; None: prompts were not changed
    identity: Identity
    machine: Machine
    seconds: float  # from the first warm-up request to the last text

    @property
    def failed(self) -> int:
        return sum(sum(c.failures.values()) for _, rows in self.scenarios for r in rows for c in r.cells)

    @property
    def ok(self) -> bool:
        """Whether no request failed and all texts that must be equal are."""
        return not self.failed and not self.identity.differences

    def as_dict(self, details: bool = True) -> dict[str, Any]:
        """The record for results.json. `details`: include every round."""
        differences = self.identity.differences
        made = {
            "sides": [dataclasses.asdict(side) for side in self.sides],
            "scenarios": [
                {
                    "name": scenario.name,
                    "input_len": scenario.input_len,
                    "output_len": scenario.output_len,
                    "scale": scenario.scale,
                    "prompts_are": scenario.source,
                    "points": [self._row(row, details) for row in rows],
                }
                for scenario, rows in self.scenarios
            ],
            "rounds": self.rounds,
            "temperature": self.temperature,
            "fresh_by": "no prefix cache" if self.salt is None else f"prompts salted with {self.salt}",
            "texts": {
                "prompts": self.identity.prompts,
                "compared": self.identity.compared,
                "differ": len(differences),
                "first_difference": dataclasses.asdict(differences[0]) if differences else None,
                "agreement_with_first_side": {
                    self.sides[side].name: {"compared": a.compared, "differ": a.differ}
                    for side, a in self.identity.agreements.items()
                },
            },
            "failed": self.failed,
            "machine": dataclasses.asdict(self.machine),
            "seconds": self.seconds,
        }
        found: dict[str, Any] = results.rounded(made)
        return found

    def _row(self, row: Row, details: bool) -> dict[str, Any]:
        return {
            row.level.axis.replace(" ", "_"): row.level.value,
            "prompts": row.level.prompts,
            "best": self.sides[row.best].name,
            "sides": {
                side.name: _cell(cell, row.ratio(i), details)
                for i, (side, cell) in enumerate(zip(self.sides, row.cells, strict=True))
            },
        }


def _cell(cell: Cell, ratio: float, details: bool) -> dict[str, Any]:
    median = cell.median
    made: dict[str, Any] = {
        "output_throughput": median.output_throughput,
        "ratio": ratio,
        "accept_length": cell.accept_length,
        "acceptance": cell.accept_rates,
        "simulated": cell.simulated,
        "mean_ttft_ms": median.mean_ttft_ms,
        "mean_tpot_ms": median.mean_tpot_ms,
        "mean_e2e_ms": median.mean_e2e_ms,
        "failed": sum(cell.failures.values()),
        "errors_by_kind": dict(cell.failures),
    }
    if cell.spec is None and cell.lifetime is not None:
        made["accept_length_of"] = "lifetime"
    return made | ({"rounds": [dataclasses.asdict(f) for f in cell.rounds]} if details else {})
