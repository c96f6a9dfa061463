"""Measures the transfer of KV pages between two servers of the 0.9 B model, and a plain socket and memcpy.

    python benchmarks/page_transfer.py [--tokens 16384] [--turns 7] [--output FOLDER]

Two processes on this machine move the same number of bytes in six ways, in turns: a prompt's pages by tcp;
by shm; bytes through a plain socket from one buffer to another; the same from one region to another, both as
large as the pool, so that each byte is read from memory and written to it; the same with pages copied out of
a pool before and into a pool after; a copy in memory. As in an engine, the pages are scattered over a pool,
and a decode server asks for a prompt before it has room for its pages. The time is from when it accepts the
pages until the last one is verified and in its pool. CPU time is the sum of both processes; on a busy machine
it is more reliable than the rate. The last line is JSON.

Claim: tcp makes at least 0.7 of the rate of the plain socket between regions.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import mmap
import multiprocessing
import select
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

import torch
from depth_claims import positive, run_script
from last_line import tell
from torch import Tensor

from nextn.bench.machine import this_machine
from nextn.disaggregation.identity import Identity
from nextn.disaggregation.landing import Landing
from nextn.disaggregation.page_copies import PageCopies
from nextn.disaggregation.remote import Remote
from nextn.disaggregation.sink import Ended, PageSink
from nextn.disaggregation.source import PageSource
from nextn.kvcache.layout import LatentLayout
from nextn.kvcache.pool import KVPool

IDENTITY = Identity(
    version="1", model="0.9b", weights="bfloat16", kernels="cpu", page_size=16, layers=17, nextn_layers=1,
    width=288, dtype="bfloat16",
)  # fmt: skip
BACKENDS = ("tcp", "shm")
HOT, COLD, COPIES = PLAIN = ("plain socket", "plain socket, regions", "plain socket and copies")
WAYS = (*BACKENDS, *PLAIN, "memcpy")
BUFFER = 1 << 20  # bytes; the plain sockets and memcpy move so many at a time, in memory that is aligned
PIECE = 6  # pages that "plain socket and copies" copies at a time
TIMEOUT = 30.0
ASKED = 0.05  # seconds after which the source has received the sink's request


class Pool:
    """An engine's KV pool. Page p of the prompt is page `table[p]` of the pool."""

    def __init__(self, pages: int) -> None:
        layout = LatentLayout(IDENTITY.width, 0)
        shape = IDENTITY.layers, pages + 1, IDENTITY.page_size
        self.pool = KVPool(*shape, layout, torch.bfloat16, torch.device("cpu"))
        self.pages = pages
        order = torch.randperm(pages, generator=torch.Generator().manual_seed(1))
        self.table = [1 + page for page in order.tolist()]
        self.copies = PageCopies(self.pool.data, IDENTITY.page_size)

    @property
    def data(self) -> Tensor:
        """The pool without its first page, the null page."""
        return self.pool.data[:, IDENTITY.page_size :]

    @property
    def region(self) -> memoryview:
        """The bytes of the pool in the order of their addresses, the null page's among them."""
        return self.pool.data.view(-1).view(torch.uint8).numpy().data

    def copy_out(self, first: int, pages: int, out: Tensor) -> Tensor:
        self.pool.read(self.table[first : first + pages], out)
        return out

    def copy_in(self, first: int, pages: int, data: Tensor) -> None:
        self.pool.write(self.table[first : first + pages], data)


def piece() -> Tensor:
    return torch.empty(IDENTITY.layers, PIECE * IDENTITY.page_size, IDENTITY.width, dtype=torch.bfloat16)


class Prefill:
    def __init__(self, tokens: int, routes: dict[int, int]) -> None:
        self.tokens, self.routes = [*range(tokens)], routes
        self.pool = Pool(tokens // IDENTITY.page_size)
        self.pool.data.fill_(1.5)
        self.sources = {way: PageSource(IDENTITY, way, "127.0.0.1", TIMEOUT) for way in BACKENDS}

    def offer(self, backend: str, room: int) -> None:
        self.sources[backend].offer(str(room), room, self.tokens)
        self.sources[backend].finished(str(room), len(self.tokens), 0)
        self.routes[room] = self.sources[backend].port

    def send(self, end: socket.socket) -> None:
        """Copies the pages out of the pool and sends only their bytes."""
        pages, data = self.pool.pages // PIECE * PIECE, piece()
        sent = data.view(-1).view(torch.uint8).numpy().data
        for first in range(0, pages, PIECE):
            self.pool.copy_out(first, PIECE, data)
            end.sendall(sent)

    def serve(self, backend: str) -> None:
        """Serves pages until the sink has taken all of them."""
        source = self.sources[backend]
        while True:
            select.select([source], [], [])
            source.clear()
            while (piece := source.wanted()) is not None:
                pages = self.pool.table[piece.first_page : piece.first_page + piece.pages]
                source.copy(piece, self.pool.copies, pages)
            for given in source.poll():
                assert given.error is None, given
                return


class Decode:
    def __init__(self, tokens: int, port: int) -> None:
        self.tokens, self.port = [*range(tokens)], port
        self.pool = Pool(tokens // IDENTITY.page_size)
        self.sinks = {way: PageSink(IDENTITY, way, TIMEOUT) for way in BACKENDS}

    def receive(self, end: socket.socket) -> None:
        pages, data = self.pool.pages // PIECE * PIECE, piece()
        buffer = data.view(-1).view(torch.uint8).numpy().data
        for first in range(0, pages, PIECE):
            filled = 0
            while filled < len(buffer):
                filled += end.recv_into(buffer[filled:])
            self.pool.copy_in(first, PIECE, data)

    def ask(self, backend: str, room: int) -> None:
        self.sinks[backend].want(str(room), Remote(room, "127.0.0.1", self.port), self.tokens)

    def fetch(self, backend: str, room: int) -> None:
        sink = self.sinks[backend]
        sink.begin(str(room), 0, Landing(self.pool.copies, self.pool.table))
        while True:
            select.select([sink], [], [])
            sink.clear()
            for event in sink.poll():
                assert isinstance(event, Ended), event
                assert event.slots == len(self.tokens), event
                return


def decode(link: Connection, end: socket.socket, tokens: int, port: int) -> None:
    """The second process. It receives orders (way, room, bytes) from `link`, and None to end."""
    torch.set_num_threads(1)
    side, buffer = Decode(tokens, port), memoryview(mmap.mmap(-1, BUFFER))
    while (order := link.recv()) is not None:
        way, room, size = order
        if way in BACKENDS:
            side.ask(way, room)
            time.sleep(ASKED)
        link.send(None)
        begin, cpu = time.perf_counter(), time.process_time()
        if way in BACKENDS:
            side.fetch(way, room)
        elif way == COPIES:
            side.receive(end)
        elif way == COLD:
            region, filled = side.pool.region, 0
            while filled < size:
                filled += end.recv_into(region[filled : min(size, filled + BUFFER)])
        else:
            while size:
                size -= end.recv_into(buffer, min(size, BUFFER))
        link.send((time.perf_counter() - begin, time.process_time() - cpu))
    assert bool((side.pool.data == 1.5).all())
    for sink in side.sinks.values():
        sink.close()


def bootstrap(routes: dict[int, int]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            room = int(self.path.rpartition("=")[2])
            body = json.dumps({"host": "127.0.0.1", "port": routes[room], "dp_rank": 0}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def copy(size: int) -> float:
    """Copies `size` bytes in memory, in pieces of BUFFER, and returns the seconds."""
    source, target = torch.ones(BUFFER, dtype=torch.uint8), torch.zeros(BUFFER, dtype=torch.uint8)
    begin = time.perf_counter()
    for _ in range(size // BUFFER):
        target.copy_(source)
    return time.perf_counter() - begin


def measure(
    prefill: Prefill, link: Connection, end: socket.socket, turns: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """(GB/s of each turn, nanoseconds of CPU time per byte) by way; the first turn does not count."""
    size, block = prefill.pool.data.nbytes // BUFFER * BUFFER, mmap.mmap(-1, BUFFER)
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    costs: dict[str, list[float]] = {way: [] for way in WAYS}

    def plain() -> None:
        for _ in range(size // BUFFER):
            end.sendall(block)

    def regions() -> None:
        for at in range(0, size, BUFFER):
            end.sendall(prefill.pool.region[at : at + BUFFER])

    plain_ways = {HOT: plain, COLD: regions, COPIES: lambda: prefill.send(end)}

    for turn in range(turns + 1):
        for i, way in enumerate(WAYS):
            room, moved = turn * len(WAYS) + i, prefill.pool.data.nbytes if way in BACKENDS else size
            cpu = time.process_time()
            if way == "memcpy":
                seconds, cost = copy(size), 0.0
            else:
                if way in BACKENDS:
                    prefill.offer(way, room)
                link.send((way, room, size))
                link.recv()
                cpu = time.process_time()
                if way in BACKENDS:
                    prefill.serve(way)
                else:
                    plain_ways[way]()
                seconds, cost = link.recv()
            if turn:
                rates[way].append(moved / seconds / 1e9)
                costs[way].append((cost + time.process_time() - cpu) * 1e9 / moved)
    return rates, costs


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, help="folder for the result", metavar="FOLDER")
    parser.add_argument(
        "--tokens", type=positive, default=16384, help="tokens of the prompt (default: 16384)"
    )
    parser.add_argument("--turns", type=positive, default=7, help="turns of each way (default: 7)")
    args = parser.parse_args()
    torch.set_num_threads(1)
    spawn, routes = multiprocessing.get_context("spawn"), dict[int, int]()
    server = bootstrap(routes)
    ours, theirs = spawn.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        end = socket.create_connection(listening.getsockname())
        other, _ = listening.accept()
    tokens = args.tokens // IDENTITY.page_size * IDENTITY.page_size
    given = (theirs, other, tokens, server.server_address[1])
    second = spawn.Process(target=decode, args=given, daemon=True)
    second.start()
    prefill = Prefill(tokens, routes)
    rates, costs = measure(prefill, ours, end, args.turns)
    ours.send(None)
    second.join()
    for source in prefill.sources.values():
        source.close()
    server.shutdown()
    middle = {way: median(each) for way, each in rates.items()}
    cost = {way: median(each) for way, each in costs.items()}
    print("| way | GB/s | of the plain socket | regions | and copies | of memcpy | CPU ns per byte |")
    print("|:--|--:|--:|--:|--:|--:|--:|")
    for way in WAYS:
        parts = " | ".join(f"{middle[way] / middle[other]:.2f}" for other in (*PLAIN, "memcpy"))
        print(f"| {way} | {middle[way]:.2f} | {parts} | {cost[way]:.3f} |")
    result = {
        "tokens": tokens,
        "bytes": prefill.pool.data.nbytes,
        "gigabytes_per_second": rates,
        "cpu_nanoseconds_per_byte": costs,
        "tcp_of_plain_socket": middle["tcp"] / middle[HOT],
        "tcp_of_plain_socket_regions": middle["tcp"] / middle[COLD],
        "tcp_of_plain_socket_and_copies": middle["tcp"] / middle[COPIES],
        "cpu_of_plain_socket_of_tcp": cost[HOT] / cost["tcp"],
        "cpu_of_plain_socket_regions_of_tcp": cost[COLD] / cost["tcp"],
        "shm_of_memcpy": middle["shm"] / middle["memcpy"],
        "machine": dataclasses.asdict(this_machine()),
    }
    tell("page-transfer", result, args.output)
    return 0 if second.exitcode == 0 else 1


if __name__ == "__main__":
    run_script(main)
