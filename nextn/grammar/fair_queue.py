"""A queue that is fair to clients: round robin over hosts, and over the connections of each host. Without
threads or I/O."""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import Generic, TypeVar

from nextn.grammar.limits import Busy

PER_SOURCE = 64  # items of one connection that may wait; a batch may have this many constraints
PER_ALL = 1024
BYTES_PER_SOURCE, BYTES_PER_ALL = 2**24, 2**26  # bytes of texts in the queue

Item = TypeVar("Item")


@dataclass(frozen=True)
class Source:
    """The origin of a job. host: the client's host; connection: one of its connections. Both are "" for this
    process itself."""

    host: str = ""
    connection: str = ""

    @classmethod
    def of(cls, name: str) -> Source:
        """Parses a name "host port"."""
        host, _, connection = name.partition(" ")
        return cls(host, connection)


class FairQueue(Generic[Item]):
    def __init__(self) -> None:
        self._hosts: OrderedDict[str, OrderedDict[str, deque[tuple[Item, int]]]] = OrderedDict()
        self._count = self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def waits(self, source: Source) -> bool:
        """Whether a job of this source waits."""
        return source.connection in self._hosts.get(source.host, ())

    def others_wait(self, source: Source) -> bool:
        """Whether a job of another source waits."""
        return sum(map(len, self._hosts.values())) > self.waits(source)

    def put(self, source: Source, item: Item, size: int) -> list[Item]:
        """Adds a job. If there is no room, removes and returns the last jobs of the source with the most
        jobs. Raises Busy if the new job would be removed."""
        connections = self._hosts.setdefault(source.host, OrderedDict())
        line = connections.setdefault(source.connection, deque())
        if len(line) >= PER_SOURCE or (line and sum(n for _, n in line) + size > BYTES_PER_SOURCE):
            raise Busy(f"{len(line)} constraints of this connection wait to be compiled; try again later")
        line.append((item, size))
        self._count += 1
        self._bytes += size
        out: list[Item] = []
        while self._count > PER_ALL or self._bytes > BYTES_PER_ALL:
            out.append(self._last_of_most())
        if any(each is item for each in out):
            raise Busy(f"{self._count} constraints wait to be compiled; try again later")
        return out

    def take(self) -> Item:
        """Removes and returns the next job. There must be one."""
        host, connections = next(iter(self._hosts.items()))
        connection, line = next(iter(connections.items()))
        item, size = line.popleft()
        self._hosts.move_to_end(host)
        connections.move_to_end(connection)
        self._left(host, connection, size)
        return item

    def remove(self, item: Item) -> bool:
        """Removes a job. False if it does not wait here."""
        for host, connections in self._hosts.items():
            for connection, line in connections.items():
                for i, (each, size) in enumerate(line):
                    if each is item:
                        del line[i]
                        self._left(host, connection, size)
                        return True
        return False

    def take_all(self, source: Source) -> list[Item]:
        """Removes and returns all jobs of a source."""
        items = (
            [item for item, _ in self._hosts[source.host][source.connection]] if self.waits(source) else []
        )
        for item in items:
            self.remove(item)
        return items

    def _last_of_most(self) -> Item:
        host, connections = max(self._hosts.items(), key=lambda h: sum(map(len, h[1].values())))
        connection, line = max(connections.items(), key=lambda c: len(c[1]))
        item, size = line.pop()
        self._left(host, connection, size)
        return item

    def _left(self, host: str, connection: str, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        if not self._hosts[host][connection]:
            del self._hosts[host][connection]
        if not self._hosts[host]:
            del self._hosts[host]
