"""What a source and a sink say to each other.

    sink                       source
    Hello               ->
                        <-     Hello, or Hello and Refused
    Want                ->                      when a request arrives
    Begin               ->                      when there are pages for its prompt
                        <-     Pages ...        as they are computed
                        <-     Done
    Taken               ->

Either ends a transfer with Abort, and says Ping when it has nothing else to say. The sink numbers its
transfers, and never twice on a connection: what is under way for an old transfer cannot be taken for a new
one's. With shared memory and NIXL, Pages names a slot of the sink's memory, which Read gives back. With NIXL,
the sink says Memory after the source's Hello.
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
    """timeout: the silence after which the sender gives up. door, key: the source's, where the sink hands in
    its shared memory."""

    identity: Identity
    backend: Text
    timeout: Seconds
    door: Text = ""
    key: bytes = b""

    def differences(self, other: Hello) -> list[str]:
        """Why these two cannot work together, for people on this one's side."""
        found = self.identity.differences(other.identity)
        if self.backend != other.backend:
            found.append(f"transfer backend is {self.backend} here and {other.backend} there")
        return found


class Refused(Message, tag=1):
    """The connection is of no use."""

    error: Text


class Want(Message, tag=2):
    """The sink will ask for this room, whose pages are kept from now on. tokens, prompt: the prompt's length
    and hash."""

    transfer: Count
    room: int
    tokens: Count
    prompt: bytes


class Pages(Message, tag=3):
    """slots: of the prompt that are true with these pages; fewer than the pages hold only at the end.
    memory_slot: of the sink's memory; -1: the bytes follow, and behind them their checksum."""

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
    """All is here; the source may free it."""

    transfer: Count


class Abort(Message, tag=6):
    transfer: Count
    error: Text


class Ping(Message, tag=7):
    pass


class Read(Message, tag=8):
    memory_slot: Count


class Begin(Message, tag=9):
    """Pages may come. have_pages: that the sink has already."""

    transfer: Count
    have_pages: Count


class Memory(Message, tag=10):
    """Where the source writes to. metadata: what NIXL has to know of it."""

    metadata: Annotated[bytes, msgspec.Meta(max_length=MOST_METADATA)]
    address: Count


AnyMessage = Hello | Refused | Want | Pages | Done | Taken | Abort | Ping | Read | Begin | Memory
