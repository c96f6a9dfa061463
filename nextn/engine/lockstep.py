"""Engines that share their experts run every step together, each on requests of its own, or sleep together.

Each step begins with a meeting in which all say how many rows they have
(`nextn.distributed.shared_world`). A step in which nobody has any sends all to sleep. Whoever gets work then
wakes the others with the number of the step that it goes on to: one that has been there already takes no
notice.
"""

from __future__ import annotations

import logging
import os
import weakref

from nextn.distributed.place import Place
from nextn.distributed.pulse import Pulse
from nextn.distributed.shared_world import SharedWorld
from nextn.engine.around import Around
from nextn.engine.executor import Ran
from nextn.engine.runner import Runner
from nextn.engine.tensor_parallel import TensorParallelExecutor
from nextn.scheduler.plan import Plan

log = logging.getLogger("nextn.engine")


class LockstepExecutor(Around):
    """Raises PeerGone once an engine is gone, or one of its ranks."""

    def __init__(self, own: Runner | TensorParallelExecutor, place: Place) -> None:
        assert isinstance(own.world, SharedWorld)
        super().__init__(own)
        self._world, self._place = own.world, place
        self._step = 0
        self._awake = False
        self._pulse = Pulse(self._world, _lost)
        weakref.finalize(self, self._pulse.stop)

    def launch(self, plan: Plan) -> Ran:
        if not self._awake:
            self._place.wake_others(self._step)
        self._step += 1
        found = self._own.launch(plan).result()
        self._awake = self._world.busy
        return Ran(found)

    @property
    def awake(self) -> bool:
        return self._awake

    @property
    def wakes(self) -> LockstepExecutor:
        return self

    def fileno(self) -> int:
        return self._place.fileno()

    def leave(self) -> None:
        self._pulse.stop()
        self._world.give_up("the engine of another group has ended")

    def hear(self) -> None:
        self._awake |= self._place.woken(self._step)


def _lost(group: int, what: str) -> None:
    """Whoever waits for a stopped rank cannot be ended otherwise: the supervisor starts all again."""
    log.critical("the engine of group %d %s; this one ends", group, what)
    os._exit(1)
