"""Memory between a source and a sink: what a stranger hands in is not used, and nothing of it has a name."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.transfers import IDENTITY

from nextn.disaggregation.buffers import Buffers
from nextn.disaggregation.connection import Connection
from nextn.disaggregation.framing import Broken
from nextn.disaggregation.layout import Layout
from nextn.disaggregation.memory import check_backend, hand_in
from nextn.disaggregation.memory_listener import MemoryListener
from nextn.disaggregation.messages import Hello

SLOT = 1 << 20


class Watcher:
    """Calls back for all that was watched, when it is told to."""

    def __init__(self) -> None:
        self.files: dict[Any, Callable[[], None]] = {}

    def watch(self, file: Any, readable: Callable[[], None]) -> None:
        self.files[file] = readable

    def unwatch(self, file: Any) -> None:
        del self.files[file]

    def look(self) -> None:
        for _ in range(2):
            for readable in list(self.files.values()):
                readable()


@pytest.fixture
def place() -> Iterator[tuple[Watcher, MemoryListener, Connection]]:
    watcher, connection = Watcher(), object()  # of a connection it only has to know which one it is
    listener = MemoryListener(watcher, SLOT, lambda: None)
    yield watcher, listener, connection  # type: ignore[misc]
    listener.close()


def test_both_see_the_same(place: tuple[Watcher, MemoryListener, Connection]) -> None:
    watcher, listener, connection = place
    before = sorted(os.listdir("/dev/shm"))
    sink = hand_in(Hello(IDENTITY, "shm", 1.0, listener.name, listener.key(connection)), SLOT)
    watcher.look()
    source = listener.memories[connection]
    source[3][:5] = 7
    assert sink[3][:6].tolist() == [7, 7, 7, 7, 7, 0]
    assert len(source) == len(sink) == len(source.free) == 8
    assert sorted(os.listdir("/dev/shm")) == before
    listener.forget(connection)
    assert not listener.memories


def visit(listener: MemoryListener, key: bytes, files: list[int]) -> None:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.connect(b"\0" + listener.name.encode())
        if files:
            socket.send_fds(visitor, [key], files)
        else:
            visitor.sendall(key)


@pytest.mark.parametrize("what", ["wrong key", "no memory", "too small", "not sealed", "no memory at all"])
def test_what_is_not_used(place: tuple[Watcher, MemoryListener, Connection], what: str) -> None:
    watcher, listener, connection = place
    key, file = listener.key(connection), os.memfd_create("test", os.MFD_ALLOW_SEALING)
    read, write = os.pipe()
    if what == "wrong key":
        hand_in(Hello(IDENTITY, "shm", 1.0, listener.name, b"k" * 16), SLOT)
    elif what == "no memory":
        visit(listener, key, [])
    elif what == "no memory at all":
        visit(listener, key, [read])
    else:
        os.ftruncate(file, 4096 if what == "too small" else 16 * SLOT)
        visit(listener, key, [file])
    watcher.look()
    assert not listener.memories
    assert len(watcher.files) == 1  # the listener itself
    for each in (file, read, write):
        os.close(each)


def test_a_listener_that_is_not_here() -> None:
    with pytest.raises(Broken, match="shared memory"):
        hand_in(Hello(IDENTITY, "shm", 1.0, "nobody", b"k"), SLOT)


def test_other_backends() -> None:
    check_backend("tcp")
    with pytest.raises(ValueError, match="mooncake: choose from tcp, shm, nixl"):
        check_backend("mooncake")


def test_memory_is_used_again_when_no_tensor_refers_to_it() -> None:
    layout = Layout.of(IDENTITY)
    buffers = Buffers(layout.piece_bytes)
    first = buffers.take(layout.page_bytes)
    tensor = layout.tensor(first)
    where = tensor.data_ptr()
    part, other = tensor[1:], first[1:]
    del first, tensor
    gc.collect()
    assert buffers.take(layout.page_bytes).ctypes.data != where
    del part
    gc.collect()
    assert buffers.take(layout.page_bytes).ctypes.data != where
    del other
    gc.collect()
    assert buffers.take(layout.page_bytes).ctypes.data == where
