"""What an engine asks of whatever runs its steps, and what it has to know of it.

`nextn.engine.runner` runs them in this process, `nextn.engine.group_executor` in others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np
from torch import Tensor

from nextn.expert_load import ShardRows
from nextn.scheduler.plan import Plan, States, StepResult

ExpertCounts: TypeAlias = tuple[np.ndarray, np.ndarray]  # see `nextn.models.base.CountsExperts`


@dataclass(frozen=True)
class ExecutorInfo:
    """Plain data. nextn_layers: MTP layers that draft. pages: of the KV pool, the null page not counted.
    experts: of the model, and chosen for a row. cache_layers, cache_width: of the pool, the drafter's
    included. cuts: may a chain of drafts be cut by its confidence? computes: False of a fake model, whose
    steps cost nothing. score_cost, context_cost: see `PromptBudget`. chip: by name. isa: of the native
    kernels. arithmetic: formats of weights that they do not multiply in their own way, and how they do."""

    architecture: str
    vocab_size: int
    eos_ids: frozenset[int]
    max_positions: int
    nextn_layers: int
    experts: tuple[int, int]
    page_size: int
    pages: int
    cuts: bool
    computes: bool
    score_cost: float
    context_cost: float
    device: str
    chip: str
    dtype: str
    kernels: str
    isa: str | None
    arithmetic: dict[str, str]
    threads: int
    load_seconds: float
    weight_bytes: int
    kv_bytes_target: int
    kv_bytes_draft: int
    cache_layers: int
    cache_width: int


class Wakes(Protocol):
    def fileno(self) -> int:
        """Readable when there is something to hear."""

    def hear(self) -> None:
        """Afterwards `Executor.awake` is as it should be."""

    def leave(self) -> None:
        """The engine ends: the others, which end too, wait for it no more."""


class Ticket(Protocol):
    def result(self) -> StepResult:
        """Waits until the step has run. May be called once."""


class ShardLoad(Protocol):
    """What this engine's requests gave the shards of experts. rows: in the last window of steps; None: there
    was none yet. sent: bytes that its ranks have sent to others in all."""

    @property
    def rows(self) -> ShardRows | None: ...

    @property
    def sent(self) -> int: ...

    def stepped(self, idle: bool) -> None:
        """After each step that had rows. idle: there is no more work."""


class Executor(States, Protocol):
    """Not thread-safe."""

    @property
    def info(self) -> ExecutorInfo: ...

    @property
    def waited(self) -> float:
        """Seconds for which the ranks of its steps have waited for each other in all."""

    def shard_load(self) -> ShardLoad | None:
        """From now on; None where no experts are shared, or none in this process."""

    def expert_counts(self) -> ExpertCounts | None:
        """None where nobody counts, as on other kernels, or where there are no experts."""

    @property
    def awake(self) -> bool:
        """Do others that share its experts run steps, so that it has to, too, with an empty plan if need
        be? False where there are none."""

    @property
    def wakes(self) -> Wakes | None:
        """What says that others begin to run steps; None where there are none."""

    def launch(self, plan: Plan) -> Ticket:
        """Begins a step. Steps run in the order in which they are launched."""

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        """Copies these pages, as they are after every step that was launched, to the host: into
        [cache_layers, len(pages) * page_size, cache_width]."""

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        """Fills pages that no step uses with what `read_pages` copied somewhere."""

    def page_memory(self) -> Tensor | None:
        """The pool, [cache_layers, slots, cache_width], once every step that was launched has run: any thread
        may read pages of it that no step changes, and write pages that no step uses. None where it is not in
        this process's memory, or not there alone."""

    def check(self) -> None:
        """Raises what `launch` would where no step can run any more."""

    def refuse(self, reason: str) -> None:
        """The engine cannot be, for that reason: ranks on other machines are not to come again."""


class Ran(NamedTuple):
    """The ticket of a step that has run."""

    found: StepResult

    def result(self) -> StepResult:
        return self.found
