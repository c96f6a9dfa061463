"""Live expert rebalancing (EPLB): while the engine serves, experts move so that all shards get equal load.

After every --eplb-rebalance-num-iterations steps, all ranks exchange the counts of rows since the last time,
compute the same new placement, and move the experts that change their slots
(`nextn.distributed.expert_mover`). No text changes, because all copies of an expert have the same bytes.
Ranks decide by the exchanged counts and never by a clock, so all do the same after the same step."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence

import numpy as np

from nextn.config import EngineConfig
from nextn.distributed.exchange import Exchange
from nextn.distributed.expert_mover import ExpertMover, Slots
from nextn.distributed.improvement import Plan, dispatched, improved
from nextn.distributed.placement import Counts, Move, Placement, moves, utilisation
from nextn.distributed.step_world import StepWorld
from nextn.layers.expert_slots import ExpertSlots
from nextn.models.native import NativeModel
from nextn.models.torch_model import TorchModel

log = logging.getLogger("nextn.engine")


class Balancer:
    """imbalance: the highest load of a shard over the mean load, in the steps before the last exchange, as a
    mean of all layers. rebalancings: how often experts moved. moved: number of slots that got another expert.
    """

    def __init__(
        self, config: EngineConfig, world: StepWorld, model: NativeModel | TorchModel, plan: Plan = improved
    ) -> None:
        self._every = config.eplb_rebalance_num_iterations
        self._layers_at_once = config.eplb_rebalance_layers_per_chunk
        self._threshold = config.eplb_min_rebalancing_utilization_threshold
        self._world, self._share, self._model, self._plan = world, world.share, model, plan
        self._tables = _tables(model)
        self._last = np.zeros_like(model.expert_counts()[0])
        self._steps = 0
        self._exchange: Exchange | None = None
        self._mover: ExpertMover | None = None
        self._target: Placement | None = None
        self._left: deque[tuple[int, list[Move]]] = deque()  # layers that still have to move, and their moves
        self.imbalance, self.rebalancings, self.moved = 1.0, 0, 0

    def stepped(self) -> None:
        """Each rank calls this between two steps. Raises PeerGone."""
        if self._left:
            self._move()
            return
        self._steps += 1
        if self._steps == self._every:
            self._steps = 0
            self._look()

    def _look(self) -> None:
        placement, shards, dynamic = self._share.placement, self._share.shards, self._world.dynamic
        if self._exchange is None:
            self._exchange = Exchange(self._world, self._last.nbytes)
        counts = self._rows(self._exchange)
        found = utilisation(dispatched(counts, placement, shards, dynamic))
        self.imbalance = float((1 / found).mean())
        if found.mean() >= self._threshold:
            return
        nodes, groups = self._share.nodes, self._share.groups
        self._target = self._plan(placement, counts, shards, dynamic, nodes, groups)
        self._left += [(row, some) for row, some in enumerate(moves(placement, self._target, shards)) if some]
        if not self._left:
            return
        if self._mover is None:
            self._mover = ExpertMover(self._world, self._tables, self._exchange)
        self.rebalancings += 1
        if self._share.rank == 0:
            after = utilisation(dispatched(counts, self._target, shards, dynamic))
            log.info(
                "eplb: the fullest shard has %.2f times the mean; experts move in %d layers, to %.2f",
                self.imbalance, len(self._left), (1 / after).mean(),
            )  # fmt: skip
        self._move()

    def _rows(self, exchange: Exchange) -> Counts:
        """[groups, layers, experts], since the last exchange. A group's first rank counts for the group."""
        now = self._model.expert_counts()[0]
        found = exchange.of_all(now - self._last)
        self._last = now
        counts: Counts = found.reshape(self._world.groups, -1, *now.shape).sum(axis=1)
        return counts

    def _move(self) -> None:
        """Moves experts of the next layers, as many layers as may move between two steps."""
        assert self._mover is not None
        assert self._target is not None
        physical = self._share.placement.physical.copy()
        for _ in range(min(len(self._left), self._layers_at_once or len(self._left))):
            row, some = self._left.popleft()
            self._mover.move(self._tables[row], some)
            self._tables[row].take(self._target, row)
            physical[row] = self._target.physical[row]
            self.moved += len(some)
        self._share.placement = Placement(physical, self._target.experts)


def _tables(model: NativeModel | TorchModel) -> Sequence[Slots]:
    """The tables of slots, one for each layer with routed experts."""
    if isinstance(model, NativeModel):
        return list(model.weights.tables.values())
    return [ExpertSlots(moe) for moe in model.parallel]
