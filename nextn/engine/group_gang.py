"""The ranks of --enable-dp-attention on several machines, as the engine of one group sees them.

All engines are on node 0. Group 0's engine starts the ranks there and waits for those of other machines. It
tells all when everything has loaded, and when everything ends."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterable, Mapping
from functools import partial
from multiprocessing import connection
from multiprocessing.connection import Connection

from nextn.config import EngineConfig
from nextn.distributed import rendezvous
from nextn.distributed.group import PeerGone
from nextn.distributed.members import Members
from nextn.distributed.process import RankProcess
from nextn.distributed.rendezvous import Host, Met
from nextn.distributed.signs import Signs
from nextn.distributed.wire import GONE, Ended, Loaded, receive, send, send_last
from nextn.engine.facts import facts
from nextn.engine.gang import HEARD_SECONDS, check_processes, start

log = logging.getLogger("nextn.engine")

LOOK = 0.2  # seconds between two checks whether a process has ended, while models are loaded
LEFT = 0.5  # seconds in which an ending engine sends its message
SAID = 3.0  # seconds in which group 0's engine reports why all end, and its supervisor ends the others


class GroupGang:
    """links: connections to the ranks of this group. signs: connections between group 0's engine and each
    other engine. reason: why no step can run any more."""

    def __init__(self, config: EngineConfig, group: int) -> None:
        """Raises the errors of `Host`, `Host.meet` and `join`, with ValueError instead of Refused."""
        self.group, self.members = group, Members(config.groups, config.tp_size)
        self.processes: dict[int, RankProcess] = {}
        self.reason = ""
        self._lost, self._orderly = threading.Lock(), False
        met = self._host(config) if group == 0 else self._join(config)
        own = self.members.of_group(group)
        self.links = [Connection(_taken(met.data, member).detach()) for member in own]
        self.signs = Signs(met.signs)
        self._words: Mapping[int, Connection] = met.work
        self._nodes = met.nodes
        for end in met.data:
            if end is not None:
                end.close()

    def _host(self, config: EngineConfig) -> Met:
        members, others = self.members, config.nnodes - 1
        try:
            with contextlib.closing(
                Host(config.rank_0, members.size, facts(config), others, members.name)
            ) as host:
                start(config, None, self.processes)
                return host.meet(config.dist_timeout, partial(check_processes, self.processes))
        except BaseException:
            self._end_processes()
            raise

    def _join(self, config: EngineConfig) -> Met:
        members = self.members
        try:
            return rendezvous.join(
                config.rank_0, self.group, members.size, facts(config), config.dist_timeout, members.name
            )
        except (rendezvous.Refused, OSError) as e:
            time.sleep(SAID)
            raise ValueError(str(e)) from e

    def wait_until_loaded(self) -> None:
        """Raises the error of a rank that failed to load, and PeerGone."""
        if self.group:
            self._wait_for_word()
            return
        try:
            waited = {self._words[member]: member for member in self.members.ranks}
            while waited:
                ready = connection.wait(list(waited), LOOK)
                for link in ready:
                    assert isinstance(link, Connection)
                    self._read_loaded(link, waited.pop(link))
                if self.reason and not ready:  # all messages have been read
                    raise PeerGone(self.reason)
        except Exception as e:
            self.refuse(str(e))
            raise
        for word in self._words.values():
            with contextlib.suppress(*GONE):  # the next step will raise the error
                send(word, Loaded())

    def refuse(self, reason: str) -> None:
        """The engines cannot start. Each finds this out itself, and group 0's tells the ranks."""
        if self.group:
            time.sleep(SAID)
        else:
            self.say(Ended(f"the engine does not start: {reason}"))

    def _read_loaded(self, link: Connection, member: int) -> None:
        try:
            found = receive(link)
        except GONE:
            self.reason = self.reason or f"{self.members.name(member)} has ended"
            return
        if isinstance(found, Exception):
            raise found

    def _wait_for_word(self) -> None:
        """Waits for the message of group 0's engine that all have loaded."""
        found: object = None
        with contextlib.suppress(*GONE):
            found = receive(self._words[0])
        if isinstance(found, Loaded):
            return
        time.sleep(SAID)
        raise ValueError(found.error if isinstance(found, Ended) else "the engine of group 0 has ended")

    def gone(self, reason: str) -> bool:
        """Called when a process has ended or does not answer. Returns whether another engine has shut down
        normally. Then all ranks end too; otherwise they join again."""
        with self._lost:
            if not self.reason:
                self.reason = reason
                self._orderly = self._left()
                if not self._orderly:
                    log.critical("%s: this engine can run no more steps", reason)
                elif self.group == 0:
                    self.say(Ended())
            return self._orderly

    def _left(self) -> bool:
        """Whether another engine has shut down normally. Group 0's engine hears it from all, others from
        it."""
        others = [word for member, word in self._words.items() if member not in self.members.ranks]
        for word in connection.wait(others, LEFT):
            assert isinstance(word, Connection)
            with contextlib.suppress(*GONE):
                if isinstance(receive(word), Ended):
                    return True
        return False

    def say(self, last: Ended) -> None:
        """Sends a last message to all others, and waits a moment until the ranks have read it and ended."""
        engines, ranks = list[Connection](), list[Connection]()
        for member, word in self._words.items():
            (ranks if member in self.members.ranks else engines).append(word)
        for word in engines:
            with contextlib.suppress(*GONE):
                send(word, last)
        send_last(ranks, last, HEARD_SECONDS)

    def close(self) -> None:
        _close(self.links)
        _close(self._words.values())
        self.signs.close()
        for node in self._nodes:
            node.close()
        self._end_processes()

    def _end_processes(self) -> None:
        for process in self.processes.values():
            process.close()


def _taken(data: list[socket.socket | None], member: int) -> socket.socket:
    """Takes the socket out of the list, so that only its new owner closes it."""
    found, data[member] = data[member], None
    assert found is not None
    return found


def _close(links: Iterable[Connection]) -> None:
    for link in links:
        link.close()
