"""Requests whose pages are transferred between two engines (docs/disaggregation.md). Only bookkeeping, with
`KVManager`: `nextn.disaggregation` moves the bytes.

    fetching:  admitted, has pages for the whole prompt, whose data arrives; not in a step yet
    held:      ended, has pages that another engine still needs; no longer in a step
"""

from __future__ import annotations

from collections.abc import Iterator

from nextn.kvcache.manager import KVManager
from nextn.request import Request


def sent_slots(prompt: int, nextn_layers: int, page_size: int) -> int:
    """Number of slots of a prompt of `prompt` tokens that another engine computes: all but the last token's,
    after which this engine chooses. With several NextN layers, the last layer is some tokens behind the
    first; then the number is rounded down to whole pages.

    >>> sent_slots(40, 1, 16), sent_slots(40, 2, 16)
    (39, 32)
    """
    if nextn_layers <= 1:
        return prompt - 1
    return max(0, prompt - nextn_layers) // page_size * page_size


class Transfers:
    def __init__(self, kv: KVManager) -> None:
        self._kv = kv
        self.fetching: dict[str, Request] = {}
        self.held: dict[str, Request] = {}
        self._begun: list[Request] = []

    def __len__(self) -> int:
        return len(self.fetching) + len(self.held)

    def __iter__(self) -> Iterator[Request]:
        """All requests of both kinds; all of them have pages."""
        yield from self.fetching.values()
        yield from self.held.values()

    def begin(self, req: Request) -> None:
        """The request has pages, which can be written from now on."""
        req.fetch = False  # if it loses its pages later, it computes its prompt itself
        self.fetching[req.rid] = req
        self._begun.append(req)

    def begun(self) -> list[Request]:
        """The fetches that began since the last call."""
        found, self._begun = self._begun, []
        return [req for req in found if self.fetching.get(req.rid) is req]

    def arrived(self, rid: str, slots: int) -> None:
        """The first `slots` slots have arrived, with entries of the target and of the draft layer."""
        self._kv.received(self.fetching[rid], slots)

    def hold(self, req: Request) -> None:
        """The request has ended, and keeps its pages until `release`."""
        assert req.rid not in self.held
        self.held[req.rid] = req

    def release(self, rid: str) -> None:
        """The pages of a held request are no longer needed: releases them."""
        self._kv.release(self.held.pop(rid))

    def give_up(self, rid: str) -> bool:
        """Frees the pages of a fetching request. False if there is no such request."""
        req = self.fetching.pop(rid, None)
        if req is None:
            return False
        self._kv.release(req)
        return True
