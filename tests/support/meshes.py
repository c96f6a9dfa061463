"""Ranks in one process, with sockets between them."""

from __future__ import annotations

import itertools
import socket
from typing import Any

from nextn.distributed.mesh import MeshRanks


def mesh(size: int, most_rows: int = 16) -> list[MeshRanks]:
    data: list[list[Any]] = [[None] * size for _ in range(size)]
    for a, b in itertools.combinations(range(size), 2):
        data[a][b], data[b][a] = socket.socketpair()
    pairs = [socket.socketpair() for _ in range(size - 1)]
    signs = [{rank: pair[0] for rank, pair in enumerate(pairs, start=1)}]
    signs += [{0: pair[1]} for pair in pairs]
    return [MeshRanks(rank, data[rank], signs[rank], size, most_rows) for rank in range(size)]
