"""Measures the maximum rates of moving bytes on this machine: through a plain socket, and by a copy."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import socket
import time
from collections.abc import Sequence

import numpy as np

PIECE = 1 << 20
SECONDS = 1.0


def socket_rate(cores: Sequence[int]) -> float:
    """Bytes per second over loopback, from a process on the first core to this process on the last core."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = listener.getsockname()
        sender = multiprocessing.get_context("spawn").Process(
            target=send, args=(address, cores[0]), daemon=True
        )
        sender.start()
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, [cores[-1]])
        try:
            connection, _ = listener.accept()
            with connection:
                return received(connection)
        finally:
            os.sched_setaffinity(0, before)
            sender.join()


def received(connection: socket.socket) -> float:
    buffer = memoryview(mmap.mmap(-1, PIECE))  # aligned: the kernel copies much faster to it
    connection.recv_into(buffer)
    begin, total = time.perf_counter(), 0
    while count := connection.recv_into(buffer):
        total += count
    return total / (time.perf_counter() - begin)


def send(address: tuple[str, int], core: int) -> None:
    os.sched_setaffinity(0, [core])
    data = mmap.mmap(-1, PIECE)
    with socket.create_connection(address) as connection:
        end = time.perf_counter() + SECONDS
        while time.perf_counter() < end:
            connection.sendall(data)


def copy_rate() -> float:
    """Bytes per second of numpy's copy of 256 MiB, more than the caches hold."""
    source = np.ones(1 << 28, np.uint8)
    target = np.empty_like(source)
    best = float("inf")
    for _ in range(4):
        begin = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - begin)
    return source.size / best
