"""Engines that share their experts run every step together, each on requests of its own, or sleep together.

Each step begins with a meeting in which all say how many rows they have
(`nextn.distributed.step_world`). A step in which nobody has any sends all to sleep. Whoever gets work then
wakes the others with the number of the step that it goes on to: one that has been there already takes no
notice.
"""

from __future__ import annotations

import logging
import os
import weakref
from typing import Protocol

from nextn.distributed.place import Place
from nextn.distributed.pulse import Pulse
from nextn.distributed.step_world import StepWorld
from nextn.engine.around import Around
from nextn.engine.executor import Executor, Ran
from nextn.scheduler.plan import Plan

log = logging.getLogger("nextn.engine")


class Others(Protocol):
    """The engines of other groups, as one knows them."""

    @property
    def busy(self) -> bool:
        """Had any group rows in the last step?"""

    @property
    def pulse(self) -> Pulse: ...

    def leave(self) -> None:
        """See `Wakes`."""


class OthersHere:
    """All are on this machine."""

    def __init__(self, world: StepWorld, place: Place) -> None:
        self._world = world
        self.pulse = Pulse(place, _lost)
        weakref.finalize(self, self.pulse.stop)

    @property
    def busy(self) -> bool:
        return self._world.busy

    def leave(self) -> None:
        self.pulse.stop()
        self._world.give_up("the engine of another group has ended")


class LockstepExecutor(Around):
    """Raises PeerGone once an engine is gone, or one of its ranks."""

    def __init__(self, own: Executor, place: Place, others: Others) -> None:
        super().__init__(own)
        self._place, self.others = place, others
        self._step = 0
        self._awake = False

    def launch(self, plan: Plan) -> Ran:
        if not self._awake:
            self._place.wake_others(self._step)
        self._step += 1
        found = self._own.launch(plan).result()
        self._awake = self.others.busy
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
        self.others.leave()

    def hear(self) -> None:
        self._awake |= self._place.woken(self._step)


def _lost(group: int, what: str) -> None:
    """Whoever waits for a stopped rank cannot be ended otherwise: the supervisor starts all again."""
    log.critical("the engine of group %d %s; this one ends", group, what)
    os._exit(1)
