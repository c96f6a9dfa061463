"""Step costs that are kept for the next start: a small JSON file for each machine, build, model and set of
options on which step times depend.

If a file is missing, unreadable or not of this form, step costs are measured again. Files are replaced
atomically.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import math
from pathlib import Path

import torch

from nextn import __version__
from nextn.config import FAKE, EngineConfig, model_folder, usable_cores
from nextn.families.files import weight_files
from nextn.speculative.depth.cost import Factors, StepCost
from nextn.user_cache import user_cache
from nextn.whole_file import write_whole

log = logging.getLogger("nextn.engine")

OFF = "off"
# Options on which step times do not depend.
_OTHER = (
    "step_cost_cache", "check_integrity", "disable_radix_cache", "model_path", "allow_non_finite_weights",
    "grammar_backend", "constrained_json_any_whitespace", "grammar_compile_timeout",
    "grammar_memory_mb",
)  # fmt: skip


class StepCostFile:
    def __init__(self, config: EngineConfig, chip: str, kernels: str) -> None:
        """chip: the processor's or GPU's name. kernels: the backend, its level and build."""
        asked = config.step_cost_cache
        folder = Path(asked) if asked else user_cache() / "step-costs"
        # Only the engine's options: a server's, which include its key, do not change step times.
        names = [f.name for f in dataclasses.fields(EngineConfig) if f.name not in _OTHER]
        options = {name: getattr(config, name) for name in names}
        self.key = {
            "nextn": __version__, "torch": torch.__version__, "machine": [chip, usable_cores()],
            "kernels": kernels, "model": _model(config), "options": options,
            "ranks": config.world_size,
        }  # fmt: skip
        name = hashlib.sha256(json.dumps(self.key, sort_keys=True, default=str).encode()).hexdigest()[:24]
        self.path = None if asked == OFF else folder / f"{name}.json"

    def read(self) -> tuple[StepCost, Factors] | None:
        if self.path is None:
            return None
        try:
            kept = json.loads(self.path.read_bytes())
            kept["cost"]["experts"] = tuple(kept["cost"]["experts"])
            if kept["cost"].keys() != {f.name for f in dataclasses.fields(StepCost)}:
                raise ValueError("they were saved by another release")
            cost = StepCost(**kept["cost"])
            factors = {int(size): [float(f) for f in found] for size, found in kept["factors"].items()}
            _check(cost, factors)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as e:
            log.warning("step costs in %s are measured again: %s", self.path, e or type(e).__name__)
            return None
        return cost, factors

    def write(self, cost: StepCost, factors: Factors) -> None:
        if self.path is None:
            return
        kept = {**self.key, "cost": dataclasses.asdict(cost), "factors": dict(factors)}
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self.path, json.dumps(kept, indent=1, default=str).encode())
        except OSError as e:
            log.warning("step costs cannot be saved for the next start: %s", e)


def _check(cost: StepCost, factors: Factors) -> None:
    """Raises ValueError for invalid costs or factors."""
    count, chosen = cost.experts
    parts = {k: v for k, v in dataclasses.asdict(cost).items() if k != "experts"}
    wrong = [name for name, value in parts.items() if not 0.0 <= value < math.inf]
    if wrong or not 1 <= chosen <= count or not cost.rows(1) > 0.0:
        raise ValueError(f"{', '.join(wrong) or 'experts or rows'} out of range")
    if not all(found and all(0.0 < f < math.inf for f in found) for found in factors.values()):
        raise ValueError("factors out of range")


def _model(config: EngineConfig) -> object:
    """The checkpoint: its path, and the sizes and times of its files."""
    if config.model_path.partition(":")[0] == FAKE:
        return config.model_path
    folder = model_folder(config.model_path)
    files = sorted(folder.glob("*.json")) + weight_files(folder)
    return [str(folder.resolve()), [(f.name, f.stat().st_size, f.stat().st_mtime_ns) for f in files]]
