"""Engines without a model that need each other, like those of the groups of --enable-dp-attention.

Besides the settings of `support.scripted_engine`:

    GROUP_FAIL       "<group> <path>": this group's engine cannot be built as long as the file exists
"""

from __future__ import annotations

import os
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path

from support.scripted_engine import ScriptedEngine

from nextn.config import EngineConfig
from nextn.distributed.place import Place


class GroupEngine(ScriptedEngine):
    """Ready when the engines of all groups exist. Raises ValueError if the memory was used before."""

    def __init__(self, config: EngineConfig, place: Place) -> None:
        super().__init__(config)
        group, _, path = os.environ.get("GROUP_FAIL", "").partition(" ")
        if path and int(group) == place.group and Path(path).exists():
            raise ValueError(f"group {group} is no good")
        board, own = place.memory.mapped(4096), 1024 + 8 * place.group
        if board[own : own + 8] != bytes(8):
            raise ValueError("the memory is not new")
        struct.pack_into("q", board, own, os.getpid())
        place.wake_others(0)
        while not all(struct.unpack_from(f"{place.groups}q", board, 1024)):
            place.woken(0)
            time.sleep(0.005)


def make(config: EngineConfig, place: Place) -> GroupEngine:
    return GroupEngine(config, place)


def answer(place: Place, link: Connection) -> None:
    """The main function of a process that waits until it is woken, and then wakes all others."""
    link.send(b"here")
    place.wake.setblocking(True)
    place.wake.recv(1)
    place.memory.mapped(4096)[place.group] = 7
    place.wake_others(0)
    place.close()
    link.close()
