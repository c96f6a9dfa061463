"""The settings of `nextn bench compare`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nextn.bench.dev.sweep.plan import Level
from nextn.bench.dev.sweep.scenarios import Scenario
from nextn.bench.dev.sweep.sides import SideSpec, check_sides
from nextn.config import EMBEDDED


@dataclass(frozen=True)
class Settings:
    sides: Sequence[SideSpec]  # the first one is the base of ratios
    scenarios: Sequence[Scenario]
    levels: Sequence[Level]
    output_dir: Path
    model_path: str = EMBEDDED  # for servers that are started
    common_options: Sequence[str] = ()  # for servers that are started
    rounds: int = 3
    temperature: float = 0.0  # above 0, every request has its own seed
    seed: int = 1
    tokenizer: str | None = None  # a folder; None: the first side's
    api_key: str | None = None  # sent to servers that were not started here
    silence: float = 3600.0  # seconds without data after which a request fails
    bar: bool = False

    def check(self) -> None:
        """Raises ValueError, which names the wrong option and the fix."""
        check_sides(self.sides)
        if self.common_options and not any(side.started for side in self.sides):
            raise ValueError(f"{self.common_options[0]}: options after -- are for servers started here")
        if not 0.0 <= self.temperature <= 100.0 or math.isnan(self.temperature):
            raise ValueError(f"--temperature is {self.temperature}; it must be between 0 and 100")
        names = [scenario.name for scenario in self.scenarios]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"--scenario has {name} twice")

    def server_options(self, side: SideSpec) -> list[str]:
        """Options of `nextn serve`. A later option replaces an earlier one, so a side can serve another model
        or use a prefix cache."""
        return ["--model-path", self.model_path, "--disable-radix-cache", *self.common_options, *side.options]

    @property
    def texts(self) -> int:
        """Number of texts of the whole run."""
        per_round = sum(level.prompts for level in self.levels)
        return per_round * len(self.scenarios) * self.rounds * len(self.sides)
