"""The executor of a group of --enable-dp-attention whose ranks may be on any machine.

All engines are on node 0, where the server is, with their requests and outputs. Each sends states, plans and
drops to the ranks of its group. The first rank of the group sends back the result of a step.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from torch import Tensor

from nextn.config import EngineConfig
from nextn.distributed.group import PeerGone
from nextn.distributed.pulse import LOADING, SILENT, Pulse
from nextn.distributed.wire import GONE, Ended, dumps, receive
from nextn.engine.executor import ExecutorInfo, ExpertCounts, Ran
from nextn.engine.group_gang import GroupGang
from nextn.engine.group_messages import Count, Counted, Stepped
from nextn.engine.page_data import PageData
from nextn.engine.state_messages import StateMessage
from nextn.engine.tensor_parallel import digest
from nextn.expert_load import CountTable, ShardRows
from nextn.scheduler.plan import Plan, StepResult


@dataclass
class FarLoad:
    """The numbers that the group's first rank has sent: see `ShardLoad`."""

    rows: ShardRows | None = None
    sent: int = 0

    def stepped(self, idle: bool) -> None:
        """Nothing to do: that rank counts steps itself."""


class GroupExecutor:
    """Raises PeerGone after a rank of this group has ended. If another process has ended or does not answer,
    this process ends, and its supervisor starts all again. busy: whether any group had rows in the last
    step."""

    awake, wakes = False, None  # see `Executor`

    def __init__(self, config: EngineConfig, group: int) -> None:
        """Raises the errors of `make_runner` in any rank, and those of `GroupGang`."""
        self._compares = config.check_integrity
        self._gang = gang = GroupGang(config, group)
        self._lock = threading.Lock()  # held from a message to its answer, if it has one
        self._orderly = [True]
        loading = threading.Event()
        loading.set()
        watches = {gang.members.rank(rank): process.watch for rank, process in gang.processes.items()}
        self.pulse = Pulse(gang.signs, partial(_lost, weakref.ref(gang), loading), LOADING, watches)
        self.close = weakref.finalize(self, _end, gang, self.pulse, self._orderly)
        self.busy, self._load = False, FarLoad()
        try:
            gang.wait_until_loaded()
            found = [self._receive(i) for i in range(len(gang.links))]
        except BaseException:
            self._orderly[0] = False
            self.close()
            raise
        assert isinstance(found[0], ExecutorInfo)
        self.info: ExecutorInfo = found[0]
        self.pulse.expect(SILENT)
        loading.clear()

    def add(self, state: StateMessage) -> None:
        self._tell(state)

    def drop(self, rid: str) -> None:
        self._tell(rid)

    def launch(self, plan: Plan) -> Ran:
        with self._lock:
            self._send(plan)
            found = self._receive(0)
            assert isinstance(found, Stepped)
            if self._compares:
                self._compare(found.result)
        self.busy = found.busy
        self._load.sent, self._load.rows = found.sent, found.shards
        return Ran(found.result)

    def expert_counts(self) -> ExpertCounts:
        found = self._ask(Count())
        assert isinstance(found, Counted)
        return _table(found.target), _table(found.nextn)

    def shard_load(self) -> FarLoad:
        return self._load

    def read_pages(self, pages: Sequence[int], into: Tensor) -> None:
        found = self._ask(list(pages))
        assert isinstance(found, PageData)
        into.copy_(found.tensor())

    def write_pages(self, pages: Sequence[int], data: Tensor) -> None:
        """On every rank: each has the whole latent."""
        self._tell(PageData.of(pages, data))

    def page_memory(self) -> None:
        """None: the pool is in other processes, and data has to be written on every rank."""

    def check(self) -> None:
        """Raises PeerGone if no step can run any more."""
        if self._gang.reason:
            self._orderly[0] = False  # other engines will replace these
            raise PeerGone(self._gang.reason)

    def refuse(self, reason: str) -> None:
        self._orderly[0] = False
        self._gang.refuse(reason)

    def leave(self) -> None:
        """See `Wakes`."""
        self.close()

    def _compare(self, result: StepResult) -> None:
        own = digest(result)
        for i in range(1, len(self._gang.links)):
            assert self._receive(i) == own, f"{self._name(i)} found another result than {self._name(0)}"

    def _tell(self, message: StateMessage) -> None:
        with self._lock:
            self._send(message)

    def _ask(self, question: Count | list[int]) -> object:
        """Sends a question to the first rank and returns its answer."""
        with self._lock:
            self._send(question, 1)
            return self._receive(0)

    def _send(self, message: StateMessage | Plan | Count | list[int], ranks: int | None = None) -> None:
        """ranks: number of ranks of this group, from the first on; None: all."""
        self.check()
        data = dumps(message)
        for i, link in enumerate(self._gang.links[:ranks]):
            try:
                link.send_bytes(data)
            except GONE as e:
                raise self._gone(i) from e

    def _receive(self, i: int) -> object:
        """Receives a message from rank i of this group."""
        try:
            found: object = receive(self._gang.links[i])
        except GONE as e:
            raise self._gone(i) from e
        return found

    def _gone(self, i: int) -> PeerGone:
        self._orderly[0] = False
        self._gang.gone(f"{self._name(i)} has ended")
        return PeerGone(self._gang.reason)

    def _name(self, i: int) -> str:
        members = self._gang.members
        return members.name(members.of_group(self._gang.group)[i])


def _table(counts: CountTable) -> np.ndarray:
    return np.frombuffer(counts.data, np.int64).reshape(counts.shape)


# The function of a thread. It holds a weak reference, so that it does not keep an unused executor alive.


def _lost(own: weakref.ref[GroupGang], loading: threading.Event, member: int, what: str) -> None:
    gang = own()
    if gang is None:
        return
    orderly = gang.gone(f"{gang.members.name(member)} {what}")
    loads = loading.is_set() and gang.group == 0  # then `wait_until_loaded` finds it
    if not orderly and not loads:
        os._exit(1)


def _end(gang: GroupGang, pulse: Pulse, orderly: list[bool]) -> None:
    pulse.stop()
    if orderly[0]:
        gang.say(Ended())
    gang.close()
