"""Chooses the replica for a request, by --load-balance-method.

    round_robin     each replica in turn
    total_requests  the replica with the fewest requests, running or waiting
    total_tokens    the replica with the fewest tokens in running and waiting requests: prompts, and texts so
                    far
    prefix          the replica with the smallest cost: its tokens as above, minus `MATCHED` for each token at
                    the beginning of the prompt that this replica was sent before

If several replicas are equal, it chooses the next one in turn.
"""

from __future__ import annotations

from collections.abc import Sequence

from nextn.server.process.engine_client import EngineClient
from nextn.server.process.messages import NewRequest, Ready
from nextn.server.process.prefix_index import PrefixIndex, hashed

MATCHED = 4  # a replica with a prefix of n tokens is preferred until it has MATCHED * n more tokens to do


def groups_of(requests: Sequence[NewRequest]) -> list[list[NewRequest]]:
    """Splits the choices of one HTTP request into groups. Each group goes to one replica. Choices of one
    prompt stay together, because they share its computation. If constraints differ, all choices stay
    together, so that a constraint that does not compile is reported before any choice begins."""
    if len({id(request.params.constraint) for request in requests}) > 1:
        return [list(requests)]
    groups: dict[object, list[NewRequest]] = {}
    for request in requests:
        groups.setdefault(request.rid if request.group is None else request.group, []).append(request)
    return list(groups.values())


class Dispatch:
    """Chooses replicas by one method. cached: whether the engines have a prefix cache. Without one, the
    method prefix is the same as total_tokens."""

    def __init__(self, ranks: Sequence[EngineClient], method: str, cached: bool = True) -> None:
        self.ranks, self.method = ranks, method
        self.prefixes = method == "prefix" and cached
        self._turn = 0
        self._indexes: dict[int, tuple[Ready, PrefixIndex]] = {}  # by rank; `Ready` identifies the engine

    def assign(self, groups: Sequence[Sequence[NewRequest]], rank: int | None = None) -> list[int]:
        """The replica (rank) for each group: `rank` if given, otherwise one that is up. At least one must be
        up. Each group counts as load for the groups after it."""
        added = [0] * len(self.ranks)
        chosen = []
        for group in groups:
            blocks = hashed(group[0].tokens) if self.prefixes else []
            at = self._choose(blocks, added) if rank is None else rank
            added[at] += self._size(group)
            if blocks and self.ranks[at].ready is not None:
                self._index(at).add(blocks)
            chosen.append(at)
        return chosen

    def forget(self) -> None:
        """Forgets all sent prompts, because the engines' prefix caches were emptied."""
        self._indexes.clear()

    def _choose(self, blocks: Sequence[int], added: Sequence[int]) -> int:
        count = len(self.ranks)
        in_turn = [(self._turn + i) % count for i in range(count)]
        up = [rank for rank in in_turn if self.ranks[rank].ready is not None]
        at = up[0]
        if self.method != "round_robin":
            at = min(up, key=lambda rank: self._cost(rank, blocks) + added[rank])
        self._turn = at + 1
        return at

    def _cost(self, rank: int, blocks: Sequence[int]) -> int:
        client = self.ranks[rank]
        if self.method == "total_requests":
            return client.active
        return client.tokens - (MATCHED * self._index(rank).matched(blocks) if blocks else 0)

    def _size(self, group: Sequence[NewRequest]) -> int:
        return len(group) if self.method == "total_requests" else sum(len(new.tokens) for new in group)

    def _index(self, rank: int) -> PrefixIndex:
        """The index of this replica. If its engine has been restarted, the index is new and empty."""
        ready = self.ranks[rank].ready
        assert ready is not None
        kept = self._indexes.get(rank)
        if kept is None or kept[0] is not ready:
            kept = self._indexes[rank] = ready, PrefixIndex(ready.stats.total_tokens)
        return kept[1]
