"""Measures a gather between two ranks: in shared memory, over sockets, and with torch.distributed's Gloo.

    python benchmarks/gathers.py [--width 2048] [--rounds 2000] [--output FOLDER]

The ranks are two processes on this machine. The three ways take turns of many gathers each. A row has --width
values of four bytes, and each rank has one half of it. The last line is JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import multiprocessing
import socket
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import torch
from depth_claims import positive, run_script
from last_line import tell

from nextn.bench.machine import this_machine
from nextn.distributed.memory import Memory
from nextn.distributed.mesh import MeshRanks
from nextn.distributed.shared import SharedRanks
from nextn.distributed.torch_group import TorchGroup

WAYS = ("shared memory", "sockets", "Gloo")
ROWS = (1, 8, 64, 512)
TURNS = 5


def groups(rank: int, memory: Memory, ends: list[socket.socket], address: str) -> dict[str, Any]:
    data = [None, ends[0]] if rank == 0 else [ends[0], None]
    return {
        "shared memory": SharedRanks(rank, 2, memory, 2, 1),
        "sockets": MeshRanks(rank, data, {1 - rank: ends[1]}, 2, 1),
        "Gloo": TorchGroup(rank, 2, address),
    }


def measure(ways: dict[str, Any], width: int, rounds: int) -> dict[str, dict[int, float]]:
    """Microseconds of a gather by way and rows; the median over the turns."""
    found: dict[str, dict[int, float]] = {way: {} for way in ways}
    for rows in ROWS:
        whole, took = torch.zeros(rows, width), {way: list[float]() for way in ways}
        count = max(20, rounds // rows)
        for _ in range(TURNS):
            for way, group in ways.items():
                group.gather(whole, (0, width // 2, width))  # synchronizes the ranks
                begin = time.perf_counter()
                for _ in range(count):
                    group.gather(whole, (0, width // 2, width))
                took[way].append((time.perf_counter() - begin) / count * 1e6)
        for way in ways:
            found[way][rows] = median(took[way])
    return found


def other(link: Connection, *given: Any) -> None:
    torch.set_num_threads(1)
    *where, width, rounds = given
    measure(groups(1, *where), width, rounds)
    link.send("done")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")
    parser.add_argument("--width", type=positive, default=2048, help="values of a row (default: 2048)")
    parser.add_argument("--rounds", type=positive, default=2000, help="gathers of one row (default: 2000)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spawn, memory = multiprocessing.get_context("spawn"), Memory()
    pairs = [_connected() for _ in range(2)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    ours, theirs = spawn.Pipe()
    given = (memory, [pair[1] for pair in pairs], address, args.width, args.rounds)
    second = spawn.Process(target=other, args=(theirs, *given), daemon=True)
    second.start()
    found = measure(groups(0, memory, [pair[0] for pair in pairs], address), args.width, args.rounds)
    ours.recv()
    print("| rows | " + " | ".join(f"{way}, us" for way in WAYS) + " |\n|" + "--:|" * (1 + len(WAYS)))
    for rows in ROWS:
        print(f"| {rows} | " + " | ".join(f"{found[way][rows]:.1f}" for way in WAYS) + " |")
    result = {"width": args.width, "microseconds": found, "machine": dataclasses.asdict(this_machine())}
    tell("gathers", result, args.output)
    return 0


def _connected() -> tuple[socket.socket, socket.socket]:
    """A pair of sockets connected by TCP over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        two, _ = server.accept()
    for end in (one, two):
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return one, two


if __name__ == "__main__":
    run_script(main)
