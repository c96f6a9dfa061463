"""Engines that share experts run every step together, each with its own requests, or sleep together.

Each step begins with a barrier, at which all exchange their numbers of rows (`nextn.distributed.step_world`).
After a step without any rows, all sleep. An engine that then gets work wakes the others, and sends the number
of its next step. An engine that has already run this step ignores the message.
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
    """The engines of the other groups."""

    @property
    def busy(self) -> bool:
        """Whether any group had rows in the last step."""

    @property
    def pulse(self) -> Pulse: ...

    def leave(self) -> None:
        """See `Wakes`."""


class OthersHere:
    """The engines of other groups, if all are on this machine."""

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
    """Raises PeerGone after an engine or one of its ranks has ended."""

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
    """Ends this process, because a wait for a stopped rank cannot be ended otherwise. The supervisor starts
    all engines again."""
    log.critical("the engine of group %d %s; this one ends", group, what)
    os._exit(1)
