"""The messages between a source and a sink.

    sink                       source
    Hello               ->
                        <-     Hello, or Hello and Refused
    Want                ->                      when a request arrives
    Begin               ->                      when there are pages for its prompt
                        <-     Pages ...        as they are computed
                        <-     Done
    Taken               ->

Either side can end a transfer with Abort. A side that has nothing to send for a while sends Ping. The sink
numbers its transfers and never uses a number twice on a connection. So a late frame of an old transfer cannot
belong to a new one. With shared memory and NIXL, Pages names a slot of the sink's memory, and the sink gives
the slot back with Read. With NIXL, the sink sends Memory after the source's Hello.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from nextn.disaggregation.identity import Identity

Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
Seconds = Annotated[float, msgspec.Meta(gt=0)]
MOST_TEXT = 2000
MOST_METADATA = 12 << 10
Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Message(msgspec.Struct, array_like=True):
    pass


class Hello(Message, tag=0):
    """timeout: seconds of silence after which the sender closes the connection. door, key: set by the source
    with shared memory: the memory listener's name, and the key that the sink sends there with its memory."""

    identity: Identity
    backend: Text
    timeout: Seconds
    door: Text = ""
    key: bytes = b""

    def differences(self, other: Hello) -> list[str]:
        """The reasons why the two servers cannot work together. self: from the decode server. other:
        from the prefill server."""
        found = self.identity.differences(other.identity)
        if self.backend != other.backend:
            found.append(
                f"transfer backend is {self.backend} on the decode server and {other.backend} on the "
                "prefill server"
            )
        return found


class Refused(Message, tag=1):
    """The servers do not match. The sender closes the connection."""

    error: Text


class Want(Message, tag=2):
    """The sink will fetch this room. The source keeps its pages from now on. tokens, prompt: length and hash
    of the prompt."""

    transfer: Count
    room: int
    tokens: Count
    prompt: bytes


class Pages(Message, tag=3):
    """slots: number of the prompt's slots that are complete with these pages. Only the last page can be
    partly filled. memory_slot: index in the sink's memory. If it is -1, the bytes and their checksum follow
    this header."""

    transfer: Count
    first_page: Count
    pages: Count
    slots: Count
    checksum: int = 0
    memory_slot: int = -1


class Done(Message, tag=4):
    transfer: Count
    slots: Count
    cached_tokens: Count


class Taken(Message, tag=5):
    """The sink has all pages. The source may free them."""

    transfer: Count


class Abort(Message, tag=6):
    transfer: Count
    error: Text


class Ping(Message, tag=7):
    pass


class Read(Message, tag=8):
    memory_slot: Count


class Begin(Message, tag=9):
    """The sink is ready for pages. have_pages: number of pages that it already has."""

    transfer: Count
    have_pages: Count


class Memory(Message, tag=10):
    """The memory into which the source writes with NIXL. metadata: NIXL's description of it."""

    metadata: Annotated[bytes, msgspec.Meta(max_length=MOST_METADATA)]
    address: Count


AnyMessage = Hello | Refused | Want | Pages | Done | Taken | Abort | Ping | Read | Begin | Memory
