"""The contract between the engine and an executor, which runs its steps.

`nextn.engine.runner` runs steps in this process, `nextn.engine.group_executor` in other processes.
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
    """Plain data about an executor and its model. nextn_layers: number of MTP layers that draft. pages: of
    the KV pool, without the null page. experts: number in a layer, and number chosen by a row. cache_layers,
    cache_width: of the pool, with the drafter's layers. cuts: whether low confidence may end a chain early.
    computes: False for a fake model, whose steps take no time. score_cost, context_cost: see `PromptBudget`.
    chip: its name. isa: of the native kernels. arithmetic: weight formats that the kernels multiply in
    another format, and that format."""

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
    """Messages by which engines that share experts wake each other."""

    def fileno(self) -> int:
        """Readable when a message has arrived."""

    def hear(self) -> None:
        """Reads the messages. Afterwards `Executor.awake` is up to date."""

    def leave(self) -> None:
        """This engine ends. The other engines, which end too, no longer wait for it."""


class Ticket(Protocol):
    def result(self) -> StepResult:
        """Waits until the step has run. May be called once."""


class ShardLoad(Protocol):
    """The load of this engine's requests on the shards of experts. rows: in the last window of steps, None
    before the first. sent: total bytes that its ranks have sent to other ranks."""

    @property
    def rows(self) -> ShardRows | None: ...

    @property
    def sent(self) -> int: ...

    def stepped(self, idle: bool) -> None:
        """To be called after each step that had rows. idle: there is no more work."""


class Executor(States, Protocol):
    """Runs the steps of one engine. Not thread-safe."""

    @property
    def info(self) -> ExecutorInfo: ...

    def shard_load(self) -> ShardLoad | None:
        """Starts counting. None if no experts are shared, or if this process has none of them."""

    def expert_counts(self) -> ExpertCounts | None:
        """None if there are no experts, or if the kernels do not count."""

    @property
    def awake(self) -> bool:
        """Whether other engines that share its experts run steps. Then this one has to run steps too, with
        an empty plan if it has no requests. False if there are no such engines."""

    @property
    def wakes(self) -> Wakes | None:
        """Reports when other engines begin to run steps. None if there are no such engines."""

    def launch(self, plan: Plan) -> Ticket:
        """Begins a step. Steps run in the order in which they are launched."""

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        """Copies these pages to the host, after all launched steps have run: into
        [cache_layers, len(pages) * page_size, cache_width]."""

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        """Fills pages that no step uses with data from `read_pages`."""

    def page_memory(self) -> Tensor | None:
        """The pool, [cache_layers, slots, cache_width], after all launched steps have run. Any thread may
        read pages that no step changes, and write pages that no step uses. None if the pool is not in this
        process's memory, or if other processes have pools too."""

    def check(self) -> None:
        """Raises the error of `launch`, if no step can run any more."""

    def refuse(self, reason: str) -> None:
        """The engine cannot start, for this reason. Ranks on other machines must not try to join again."""


class Ran(NamedTuple):
    """The ticket of a step that has already run."""

    found: StepResult

    def result(self) -> StepResult:
        return self.found
