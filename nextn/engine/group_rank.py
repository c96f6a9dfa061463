"""A rank of --enable-dp-attention on several machines. The engine of its group is a separate process on node
0 (`nextn.engine.group_executor`). `nextn.engine.tensor_rank` is the process of the rank."""

from __future__ import annotations

import dataclasses
import logging
import os
import signal
import traceback
from multiprocessing import connection
from multiprocessing.connection import Connection

import numpy as np
import torch

from nextn.config import EngineConfig
from nextn.distributed import rendezvous
from nextn.distributed.group import PeerGone
from nextn.distributed.life import StopWatch
from nextn.distributed.members import Members
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.pulse import LOADING, SILENT, Pulse
from nextn.distributed.signs import Signs
from nextn.distributed.wire import GONE, Loaded, receive, send
from nextn.engine.ep_rank import EPRank
from nextn.engine.exit_codes import FAILED, LOST, REFUSED, not_met, says_why
from nextn.engine.expert_recorder import ShardWindow
from nextn.engine.facts import facts
from nextn.engine.gang import most_rows, pin_rank, threads_here, threads_of
from nextn.engine.group_messages import Count, Counted, Stepped
from nextn.engine.last_word import LastWord
from nextn.engine.page_data import PageData
from nextn.engine.rank import runner_or_none
from nextn.engine.runner import Runner
from nextn.engine.state_messages import apply
from nextn.engine.tensor_parallel import digest
from nextn.expert_load import CountTable
from nextn.scheduler.plan import Plan, StepResult

log = logging.getLogger("nextn.engine")

LAST_WORD = 5.0  # seconds in which group 0's engine reports why another process has ended, or ends too


def join_and_run(config: EngineConfig, rank: int, parent: int | None = None) -> int:
    """Connects to the others over the network, and runs until the engines end. Returns the exit code. rank:
    of all groups. parent: the process of group 0's engine, if it is on this machine."""
    config = dataclasses.replace(config, threads=threads_of(config))
    members = Members(config.groups, config.tp_size)
    own = members.rank(rank)
    try:
        met = rendezvous.join(
            config.rank_0, own, members.size, facts(config), config.dist_timeout, members.name
        )
    except (rendezvous.Refused, TimeoutError, ValueError) as e:
        return not_met(config, e)
    except OSError as e:
        log.warning("node 0 has ended while others were waited for (%s)", e)
        return LOST
    group, place = divmod(rank, config.tp_size)
    pin_rank(config, rank)
    data = [met.data[member] for member in members.ranks]
    everyone = MeshRanks(rank, data, {}, threads_here(config), most_rows(config))
    engine = met.data[group]
    assert engine is not None
    link = Connection(engine.detach())
    return _Rank(config, members, everyone, link, met.work[0], Signs(met.signs), parent).run(
        EPRank(group, place, everyone=everyone)
    )


class _Rank:
    """link: to the engine of its group. word: to that of group 0. Takes them over until the process ends."""

    def __init__(
        self,
        config: EngineConfig,
        members: Members,
        everyone: MeshRanks,
        link: Connection,
        word: Connection,
        signs: Signs,
        parent: int | None,
    ) -> None:
        self._config, self._members, self._everyone = config, members, everyone
        self._link, self._parent = link, parent
        self._working = False  # whether its group had rows in the last step
        self._word = LastWord(word, self._all_have_loaded)
        self._pulse = Pulse(signs, self._lost, LOADING, {} if parent is None else {0: StopWatch(parent)})

    def run(self, ep_rank: EPRank) -> int:
        try:
            first = ep_rank.group * self._config.tp_size
            part = range(first, first + self._config.tp_size)
            ranks = self._everyone.part(part) if len(part) > 1 else None
            runner = runner_or_none(self._config, self._everyone.rank, self._word.link, ranks, ep_rank)
            if runner is None:
                self._word.take(LAST_WORD)
                return REFUSED
            send(self._link, runner.info)
            send(self._word.link, Loaded())
            self._serve(runner, ep_rank.rank == 0)
        except (*GONE, PeerGone):
            pass  # that engine logs the reason
        except Exception:
            log.critical("rank %d failed and ends:\n%s", self._everyone.rank, traceback.format_exc())
            return FAILED
        finally:
            self._pulse.stop()
        return self._heard(LAST_WORD)

    def _serve(self, runner: Runner, first: bool) -> None:
        """Runs plans until all end. first: the first rank of its group. Raises EOFError or OSError when its
        engine ends."""
        shards = runner.shard_load()
        assert shards is not None
        ends = [self._link, self._word.link]
        while True:
            ready = connection.wait(ends)
            if self._word.link in ready and self._word.take(0):
                return
            if self._link not in ready:
                continue
            message = receive(self._link)
            if apply(runner, message):
                continue
            if isinstance(message, list):
                send(self._link, _read(runner, message))
            elif isinstance(message, Count):
                send(self._link, counted(runner))
            else:
                assert isinstance(message, Plan)
                result = runner.launch(message).result()
                if first:
                    send(self._link, self._stepped(runner, shards, result))
                elif self._config.check_integrity:
                    send(self._link, digest(result))

    def _stepped(self, runner: Runner, shards: ShardWindow, result: StepResult) -> Stepped:
        world = runner.world
        assert world is not None
        if result.ran or self._working:
            shards.stepped(idle=not result.ran)
        self._working = result.ran
        return Stepped(result, world.busy, world.sent_by_group, shards.rows)

    def _all_have_loaded(self) -> None:
        self._pulse.expect(SILENT)

    def _lost(self, member: int, what: str) -> None:
        """Called in the pulse's thread, because the main thread may wait for other ranks forever."""
        if self._parent is not None and os.getppid() == self._parent and what != "has ended":
            os.kill(self._parent, signal.SIGKILL)  # for its supervisor to start another
        code = self._heard(0.5)
        if code == LOST:
            log.critical("%s %s; this rank ends", self._members.name(member), what)
        os._exit(code)

    def _heard(self, seconds: float) -> int:
        """The exit code."""
        self._word.take(seconds)
        if self._word.error and says_why(self._config, self._everyone.rank):
            log.critical("%s", self._word.error)
        return self._word.code


def counted(runner: Runner) -> Counted:
    counts = runner.expert_counts()
    assert counts is not None
    target, nextn = (CountTable(table.shape, table.astype(np.int64).tobytes()) for table in counts)
    return Counted(target, nextn)


def _read(runner: Runner, pages: list[int]) -> PageData:
    info = runner.info
    data = torch.empty(
        info.cache_layers, len(pages) * info.page_size, info.cache_width, dtype=runner.model.dtype
    )
    runner.read_pages(pages, data)
    return PageData.of(pages, data)
